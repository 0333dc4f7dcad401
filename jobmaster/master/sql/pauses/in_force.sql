-- in_force: the version of the pauses, those that are not over, and the breakers that are not closed
-- in: nothing
-- out: version bigint (the same in every row), kind text (NULL in the only row: nothing is paused), value text, until_us bigint,
--      left_seconds double precision (NULL: it has no end), actor text, reason text, at_us bigint,
--      cancelled_ranges text[] (the same in every row: the first 12 bytes of the ids of cancelled batches, hexadecimal),
--      handlers text[] (NULL: of no breaker), trials uuid[] (of a half-open breaker: jobs that may start)
-- move: nothing
-- fence: none: one snapshot, so the lines are those of the version, or those of a later one too
-- index: none; the tables are small; batch_cancelled
SELECT v.version, p.kind, p.value, to_us(p.until) AS until_us,
       extract(epoch FROM p.ends - clock_timestamp())::double precision AS left_seconds, p.actor, p.reason, to_us(p.at) AS at_us,
       ARRAY (SELECT replace(left(r.lo::text, 28), '-', '') FROM batch b JOIN batch_range r ON r.batch = b.id
              WHERE b.cancel_requested AND (b.look_at IS NOT NULL OR b.reason <> '')) AS cancelled_ranges,
       p.handlers, p.trials
FROM pause_version v
LEFT JOIN (
    SELECT kind, value, until, until AS ends, actor, reason, at, NULL::text[] AS handlers, NULL::uuid[] AS trials
    FROM pause WHERE until IS NULL OR until > clock_timestamp()
    UNION ALL
    SELECT 'breaker', b.name, b.until, NULL, b.actor, b.reason, b.changed_at,
           ARRAY (SELECT handler FROM breaker_handler h WHERE h.breaker = b.name ORDER BY handler),
           ARRAY (SELECT job_id FROM breaker_trial t WHERE t.breaker = b.name AND t.epoch = b.epoch AND t.failed IS NULL
                                                       AND t.passed_at IS NULL
                  ORDER BY job_id)
    FROM breaker b WHERE b.state <> 'CLOSED'
) AS p ON true
ORDER BY p.kind, p.value
