-- expire: jobs whose signal has not come in time end, or run without it
-- in: $1 integer limit
-- in: $2 bytea error (JSON)
-- out: expired bigint, started bigint
-- move: WAITING -> EXPIRED|HELD
-- fence: FOR UPDATE SKIP LOCKED, oldest first, read under that lock: a signal that came first has made the row HELD. Jobs of a
--        bucket wait for a confirmation, not for a signal, and are left to expire_unconfirmed
-- index: job_expires; then job_pkey
WITH late AS MATERIALIZED (
    SELECT id, signal_runs(headers) AND coalesce(expires_of(headers) > statement_timestamp(), true) AS runs FROM job
    WHERE state = 'WAITING' AND expires_at IS NOT NULL AND expires_at <= statement_timestamp()
      AND bucket_id IS NULL AND signal_key(headers) IS NOT NULL
    ORDER BY expires_at
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE job j
    SET state = CASE WHEN late.runs THEN 'HELD'::job_state ELSE 'EXPIRED' END,
        due_at = CASE WHEN late.runs THEN greatest(j.due_at, clock_timestamp()) ELSE j.due_at END,
        expires_at = CASE WHEN late.runs THEN expires_of(j.headers) END,
        error = CASE WHEN NOT late.runs THEN $2::bytea END,
        changed_at = clock_timestamp()
    FROM late WHERE j.id = late.id
    RETURNING late.runs
)
SELECT count(*) FILTER (WHERE NOT runs) AS expired, count(*) FILTER (WHERE runs) AS started FROM ended
