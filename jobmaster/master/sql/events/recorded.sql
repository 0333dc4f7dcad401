-- recorded: what some transactions have recorded: ends of jobs and of attempts, changes of buckets, fires, acts of operators
-- in: $1 bigint first transaction
-- in: $2 bigint transaction that is the first one outside
-- in: $3 text key in the first transaction up to which everything was read, '' = nothing
-- in: $4 text[] kinds of events, NULL = any
-- in: $5 text[] handlers, NULL = any; other events than those of jobs have none
-- in: $6 integer limit
-- out: distance bigint (of the transaction from the first one), key text (its place in the transaction), kind text, at timestamptz,
--      job_id uuid, handler text, lane text, priority smallint, attempt integer, token integer, bucket_id uuid, waited_us bigint,
--      ran_us bigint, headers bytea, error bytea, subject text, detail text
-- move: nothing
-- fence: every transaction below $2 had ended when $2 was taken, so nothing can come in below it any more. A row that was moved,
--        or marked as refused, bears the transaction that recorded it, so it does not come again
-- index: none, as of recorded_jobs. age() is cheap and leaves few rows for the exact comparison: it counts from one moment
--        in the whole statement, so it is at most the age of the first transaction for each later one
WITH bound AS MATERIALIZED (
    SELECT age(($1::bigint & 4294967295)::text::xid) AS first_age
), jobs AS (
    SELECT coalesce(recorded_xid - $1, (xmin::text::bigint - $1) & 4294967295) AS distance, id, state, handler, lane,
           priority, attempt, token, bucket_id, waited_us, ran_us, headers, error, changed_at
    FROM job WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
      AND (age(xmin) <= (SELECT first_age FROM bound) OR recorded_xid >= $1)
      AND ($4::text[] IS NULL OR 'job_' || lower(state::text) = ANY ($4)) AND ($5::text[] IS NULL OR handler = ANY ($5))
    UNION ALL
    SELECT coalesce(recorded_xid - $1, (xmin::text::bigint - $1) & 4294967295), id, state, handler, lane,
           priority, attempt, token, bucket_id, waited_us, ran_us, headers, error, changed_at
    FROM job_detached WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
      AND (age(xmin) <= (SELECT first_age FROM bound) OR recorded_xid >= $1)
      AND ($4 IS NULL OR 'job_' || lower(state::text) = ANY ($4)) AND ($5 IS NULL OR handler = ANY ($5))
), attempts AS (
    SELECT coalesce(recorded_xid - $1, (xmin::text::bigint - $1) & 4294967295) AS distance, *
    FROM attempt WHERE outcome <> 'refused' AND (age(xmin) <= (SELECT first_age FROM bound) OR recorded_xid >= $1)
    UNION ALL
    SELECT coalesce(recorded_xid - $1, (xmin::text::bigint - $1) & 4294967295), *
    FROM attempt_detached WHERE outcome <> 'refused' AND (age(xmin) <= (SELECT first_age FROM bound) OR recorded_xid >= $1)
), events AS (
    SELECT distance, 'job ' || id AS key, 'job_' || lower(state::text) AS kind, changed_at AS at, id AS job_id, handler, lane,
           priority, attempt, token, bucket_id, waited_us, ran_us, headers, error, NULL::text AS subject, NULL::text AS detail
    FROM jobs
    UNION ALL
    SELECT a.distance, 'attempt ' || a.job_id || lpad(a.token::text, 11, '0') || a.bucket_id || lpad(a.bucket_epoch::text, 20, '0'),
           'attempt_ended', a.at, a.job_id, j.handler, j.lane, j.priority, NULL, a.token, a.bucket_id, NULL, a.ran_us,
           j.headers, a.error, a.outcome, NULL
    FROM attempts AS a
         LEFT JOIN LATERAL (SELECT k.handler, k.lane, k.priority, k.headers FROM job_kept AS k WHERE k.id = a.job_id) AS j ON true
    WHERE ($4 IS NULL OR 'attempt_ended' = ANY ($4)) AND ($5 IS NULL OR j.handler = ANY ($5))
    UNION ALL
    SELECT (xmin::text::bigint - $1) & 4294967295, 'bucket ' || lpad(seq::text, 20, '0'), 'bucket_changed', at, NULL, NULL, NULL,
           NULL, NULL, NULL, bucket_id, NULL, NULL, NULL, NULL, to_state::text, reason
    FROM bucket_event
    WHERE ($4 IS NULL OR 'bucket_changed' = ANY ($4)) AND $5 IS NULL AND age(xmin) <= (SELECT first_age FROM bound)
    UNION ALL
    SELECT (xmin::text::bigint - $1) & 4294967295, 'fire ' || to_us(nominal) || ' ' || schedule, 'schedule_fired', at, job_id, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, schedule, outcome
    FROM schedule_fire
    WHERE ($4 IS NULL OR 'schedule_fired' = ANY ($4)) AND $5 IS NULL AND age(xmin) <= (SELECT first_age FROM bound)
    UNION ALL
    SELECT (xmin::text::bigint - $1) & 4294967295, 'operation ' || lpad(seq::text, 20, '0'), 'operator_acted', at, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, subject,
           jsonb_build_object('action', action, 'actor', actor, 'detail', detail)::text
    FROM operator_log
    WHERE ($4 IS NULL OR 'operator_acted' = ANY ($4)) AND $5 IS NULL AND age(xmin) <= (SELECT first_age FROM bound)
)
SELECT *
FROM events
WHERE distance >= 0 AND distance < $2::bigint - $1 AND (distance > 0 OR key COLLATE "C" > $3::text)
ORDER BY distance, key COLLATE "C"
LIMIT $6::integer
