-- expire_unconfirmed: jobs that were not confirmed in time run again, token + 1, or have failed
-- in: $1 integer limit
-- in: $2 bytea error (JSON) of an attempt that was not confirmed
-- out: expired bigint
-- move: WAITING -> HELD|FAILED
-- fence: FOR UPDATE SKIP LOCKED, oldest first, read under that lock: a confirmation that came first has made it final. A job
--        that is WAITING without a bucket waits for a signal and has not run
-- index: job_expires; then job_pkey
WITH late AS MATERIALIZED (
    SELECT id, token, bucket_id, bucket_epoch, ran_us, error IS NOT NULL AS last FROM job
    WHERE state = 'WAITING' AND expires_at IS NOT NULL AND expires_at <= statement_timestamp() AND bucket_id IS NOT NULL
    ORDER BY expires_at
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
), expired AS (
    UPDATE job j
    SET state = CASE WHEN late.last THEN 'FAILED'::job_state ELSE 'HELD' END,
        token = CASE WHEN late.last THEN j.token ELSE j.token + 1 END,
        bucket_id = CASE WHEN late.last THEN j.bucket_id END,
        bucket_epoch = CASE WHEN late.last THEN j.bucket_epoch END,
        expires_at = CASE WHEN NOT late.last THEN expires_of(j.headers) END,
        waited_us = CASE WHEN late.last THEN j.waited_us END,
        ran_us = CASE WHEN late.last THEN j.ran_us END,
        changed_at = clock_timestamp()
    FROM late WHERE j.id = late.id
    RETURNING j.id
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, ran_us, error)
    SELECT id, token, bucket_id, bucket_epoch, 'unconfirmed', ran_us, $2::bytea FROM late WHERE NOT last ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS expired FROM expired
