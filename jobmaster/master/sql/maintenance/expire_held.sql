-- expire_held: jobs in the master that must not start any more
-- in: $1 integer limit
-- in: $2 bytea error (JSON)
-- out: expired bigint
-- move: HELD -> EXPIRED
-- fence: FOR UPDATE SKIP LOCKED, oldest first: one that is being onboarded is left to its agent
-- index: job_expires; then job_pkey
WITH late AS MATERIALIZED (
    SELECT id FROM job
    WHERE state = 'HELD' AND expires_at IS NOT NULL AND expires_at <= statement_timestamp()
    ORDER BY expires_at
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
), expired AS (
    UPDATE job j SET state = 'EXPIRED', error = $2::bytea, changed_at = clock_timestamp()
    FROM late WHERE j.id = late.id
    RETURNING j.id
)
SELECT count(*) AS expired FROM expired
