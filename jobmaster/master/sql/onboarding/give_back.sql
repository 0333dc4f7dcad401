-- give_back: in-flight rows that their bucket's owner has no copy of, in store or memory, go back to the master, token + 1
-- in: $1 uuid bucket
-- in: $2 uuid[] ids
-- in: $3 integer[] tokens
-- in: $4 bigint[] bucket epochs (of the present one, or of one before an operator's stop)
-- in: $5 uuid lowest id
-- in: $6 uuid highest id
-- in: $7 bytea error (JSON) of a job that was started and must not be started again
-- out: moved bigint
-- move: ASSIGNED|PROCESSING -> HELD|FAILED|CANCELLED
-- fence: identity (token, bucket, epoch) on the row and a state in flight, locked in id order. No bucket lock: a superseded
--        owner finds another identity, or gives back what the rescue would give back. The token grows, because a copy that
--        turns up after all may have the same token under another epoch. No rescue is counted: no agent has died of the job.
-- index: job_pkey; the bounds prune partitions
WITH mine AS MATERIALIZED (
    SELECT j.id, j.state, j.token, j.bucket_epoch,
           CASE WHEN j.cancel_requested THEN 'CANCELLED'
                WHEN j.state = 'PROCESSING' AND is_at_most_once(j.headers) THEN 'FAILED'
                ELSE 'HELD' END::job_state AS becomes
    FROM unnest($2::uuid[], $3::integer[], $4::bigint[]) AS copy (id, token, epoch)
    JOIN job j ON j.id = copy.id AND j.id BETWEEN $5::uuid AND $6::uuid
    WHERE j.token = copy.token AND j.bucket_id IS NOT DISTINCT FROM $1::uuid AND j.bucket_epoch = copy.epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')
    ORDER BY j.id
    FOR UPDATE OF j
), moved AS (
    UPDATE job j
    SET state = m.becomes,
        token = CASE m.becomes WHEN 'HELD' THEN j.token + 1 ELSE j.token END,
        bucket_id = CASE m.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_id END,
        bucket_epoch = CASE m.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_epoch END,
        due_at = coalesce(j.due_at, clock_timestamp()),
        expires_at = CASE m.becomes WHEN 'HELD' THEN expires_of(j.headers) END,
        changed_at = clock_timestamp(),
        error = CASE m.becomes WHEN 'FAILED' THEN $7::bytea END
    FROM mine m
    WHERE j.id = m.id AND j.id BETWEEN $5 AND $6
    RETURNING j.id
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
    SELECT id, token, $1, bucket_epoch, 'lost' FROM mine WHERE state = 'PROCESSING' AND becomes = 'HELD' ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS moved FROM moved
