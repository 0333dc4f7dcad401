-- in_force: the version of the pauses, and those that are not over
-- in: nothing
-- out: version bigint (the same in every row), kind text (NULL in the only row: nothing is paused), value text, until_us bigint,
--      left_seconds double precision (NULL: it has no end), actor text, reason text, at_us bigint,
--      cancelled_ranges text[] (the same in every row: the first 12 bytes of the ids of cancelled batches, hexadecimal)
-- move: nothing
-- fence: none: one snapshot, so the lines are those of the version, or those of a later one too
-- index: none; the tables are small; batch_look for the batches that have not ended
SELECT v.version, p.kind, p.value, to_us(p.until) AS until_us,
       extract(epoch FROM p.until - clock_timestamp())::double precision AS left_seconds, p.actor, p.reason, to_us(p.at) AS at_us,
       ARRAY (SELECT replace(left(r.lo::text, 28), '-', '') FROM batch b JOIN batch_range r ON r.batch = b.id
              WHERE b.look_at IS NOT NULL AND b.cancel_requested) AS cancelled_ranges
FROM pause_version v
LEFT JOIN pause p ON p.until IS NULL OR p.until > clock_timestamp()
ORDER BY p.kind, p.value
