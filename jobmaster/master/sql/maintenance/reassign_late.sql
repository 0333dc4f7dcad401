-- reassign_late: jobs that run longer than their complete_time are given to another agent, token + 1, or have failed
-- in: $1 integer limit
-- in: $2 integer times that a job may be given to another agent so
-- in: $3 bytea error (JSON) of a job that has used them up
-- out: moved bigint, failed bigint (those of moved that became FAILED)
-- move: PROCESSING -> HELD|FAILED|CANCELLED
-- fence: FOR UPDATE SKIP LOCKED, oldest first, read under that lock: an outcome that came first has made the row final. The
--        token grows, so whatever the slow run still writes is refused by the row; a job that ends here keeps the identity of
--        that run. No bucket lock: the row alone decides which run counts. A job that must not be started twice is left to
--        its run.
-- index: job_expires; then job_pkey; attempt_pkey, one partition a row
WITH late AS MATERIALIZED (
    SELECT id, token, bucket_id, bucket_epoch, cancel_requested FROM job
    WHERE state = 'PROCESSING' AND expires_at IS NOT NULL AND expires_at <= statement_timestamp()
      AND NOT is_at_most_once(headers)
    ORDER BY expires_at
    LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
), decision AS MATERIALIZED (
    SELECT *, CASE WHEN cancel_requested THEN 'CANCELLED'
                   WHEN (SELECT count(*) FROM attempt a WHERE a.job_id = late.id AND a.outcome = 'reassigned') >= $2::integer
                   THEN 'FAILED'
                   ELSE 'HELD' END::job_state AS becomes
    FROM late
), moved AS (
    UPDATE job j
    SET state = d.becomes,
        token = CASE d.becomes WHEN 'HELD' THEN j.token + 1 ELSE j.token END,
        bucket_id = CASE d.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_id END,
        bucket_epoch = CASE d.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_epoch END,
        due_at = coalesce(j.due_at, clock_timestamp()),
        expires_at = CASE d.becomes WHEN 'HELD' THEN expires_of(j.headers) END,
        changed_at = clock_timestamp(),
        error = CASE d.becomes WHEN 'FAILED' THEN $3::bytea END
    FROM decision d
    WHERE j.id = d.id
    RETURNING d.becomes
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
    SELECT id, token, bucket_id, bucket_epoch, 'reassigned' FROM decision WHERE becomes = 'HELD' ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS moved, count(*) FILTER (WHERE becomes = 'FAILED') AS failed FROM moved
