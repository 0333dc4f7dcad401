-- in_force: the version of the pauses, and those that are not over
-- in: nothing
-- out: version bigint (the same in every row), kind text (NULL in the only row: nothing is paused), value text, until_us bigint,
--      left_seconds double precision (NULL: it has no end), actor text, reason text, at_us bigint
-- move: nothing
-- fence: none: one snapshot, so the lines are those of the version, or those of a later one too
-- index: none; both tables are small
SELECT v.version, p.kind, p.value, to_us(p.until) AS until_us,
       extract(epoch FROM p.until - clock_timestamp())::double precision AS left_seconds, p.actor, p.reason, to_us(p.at) AS at_us
FROM pause_version v
LEFT JOIN pause p ON p.until IS NULL OR p.until > clock_timestamp()
ORDER BY p.kind, p.value
