-- return_orphans: in-flight rows that name no live bucket go back to the master, token + 1
-- in: $1 double precision grace, seconds since the row's last change
-- in: $2 integer limit
-- in: $3 bytea error (JSON) of a job that was started and must not be started again
-- out: moved bigint
-- move: ASSIGNED|PROCESSING -> HELD|FAILED|CANCELLED
-- fence: compare-and-set on the row: locked in id order, its identity read under that lock. A bucket that is being drained
--        is its rescuer's; one that is LOST will be; a row from before an operator's stop is the owner's, who may run it. The
--        bucket is read without a lock: a wrong guess costs a rerun, and the token refuses the other copy.
-- index: job_in_flight, all of it (what is in flight is bounded by the buckets); then job_pkey; bucket_event_bucket
WITH orphan AS MATERIALIZED (
    SELECT j.id, j.state, j.token, j.bucket_id, j.bucket_epoch,
           CASE WHEN j.cancel_requested THEN 'CANCELLED'
                WHEN j.state = 'PROCESSING' AND is_at_most_once(j.headers) THEN 'FAILED'
                ELSE 'HELD' END::job_state AS becomes
    FROM job j
    WHERE j.state IN ('ASSIGNED', 'PROCESSING')
      AND j.changed_at < clock_timestamp() - make_interval(secs => $1::double precision)
      AND NOT EXISTS (
          SELECT FROM bucket b
          WHERE b.id = j.bucket_id
            AND (b.state IN ('LOST', 'DRAINING')
                 OR b.state IN ('ACTIVE', 'COMPLETING', 'FROZEN')
                    AND (b.epoch = j.bucket_epoch
                         OR b.epoch > j.bucket_epoch
                            AND EXISTS (SELECT FROM bucket_event e
                                        WHERE e.bucket_id = b.id AND e.from_state = 'FROZEN' AND e.to_state = 'ACTIVE'
                                          AND e.epoch > j.bucket_epoch))))
    ORDER BY j.id
    LIMIT $2::integer
    FOR UPDATE OF j SKIP LOCKED
), moved AS (
    UPDATE job j
    SET state = o.becomes,
        token = CASE o.becomes WHEN 'HELD' THEN j.token + 1 ELSE j.token END,
        bucket_id = CASE o.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_id END,
        bucket_epoch = CASE o.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_epoch END,
        rescues = j.rescues + CASE o.state WHEN 'PROCESSING' THEN 1 ELSE 0 END,
        due_at = coalesce(j.due_at, clock_timestamp()),
        expires_at = CASE o.becomes WHEN 'HELD' THEN expires_of(j.headers) END,
        changed_at = clock_timestamp(),
        error = CASE o.becomes WHEN 'FAILED' THEN $3::bytea END
    FROM orphan o
    WHERE j.id = o.id
    RETURNING j.id
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
    SELECT id, token, bucket_id, bucket_epoch, 'lost' FROM orphan WHERE state = 'PROCESSING' AND becomes = 'HELD'
    ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS moved FROM moved
