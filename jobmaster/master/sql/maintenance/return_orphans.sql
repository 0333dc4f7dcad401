-- return_orphans: in-flight rows that name no live bucket go back to the master, token + 1
-- in: $1 double precision grace, seconds since the row's last change
-- in: $2 integer limit
-- in: $3 integer rescues at which a job fails
-- in: $4 bytea error (JSON) of a job that fails so
-- in: $5 bytea error (JSON) of a job that was started and must not be started again
-- out: moved bigint, rescued bigint (those of moved that were PROCESSING: each counts one rescue),
--      failed bigint (those of moved that became FAILED)
-- move: ASSIGNED|PROCESSING -> HELD|FAILED|CANCELLED
-- fence: compare-and-set on the row: locked in id order, its identity read under that lock. A bucket that is being drained
--        belongs to its rescuer, and a LOST one will; a row from before a freeze belongs to the owner, which may run it. The
--        bucket is read without a lock: a wrong guess costs a rerun, and the token refuses the other copy.
-- index: job_by_bucket, all of it (what is in flight is bounded by the buckets); then job_pkey; bucket_event_bucket
WITH orphan AS MATERIALIZED (
    SELECT j.id, j.state, j.token, j.bucket_id, j.bucket_epoch, j.cancel_requested,
           j.rescues + CASE j.state WHEN 'PROCESSING' THEN 1 ELSE 0 END AS rescues,
           j.state = 'PROCESSING' AND is_at_most_once(j.headers) AS begun_once
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
), decided AS (
    SELECT *, CASE WHEN cancel_requested THEN 'CANCELLED'
                   WHEN begun_once OR state = 'PROCESSING' AND rescues >= $3::integer THEN 'FAILED'
                   ELSE 'HELD' END::job_state AS becomes
    FROM orphan
), moved AS (
    UPDATE job j
    SET state = v.becomes,
        token = CASE v.becomes WHEN 'HELD' THEN j.token + 1 ELSE j.token END,
        bucket_id = CASE v.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_id END,
        bucket_epoch = CASE v.becomes WHEN 'HELD' THEN NULL ELSE j.bucket_epoch END,
        rescues = v.rescues,
        due_at = coalesce(j.due_at, clock_timestamp()),
        expires_at = CASE v.becomes WHEN 'HELD' THEN expires_of(j.headers) END,
        changed_at = clock_timestamp(),
        error = CASE v.becomes WHEN 'FAILED' THEN CASE WHEN v.begun_once THEN $5::bytea ELSE $4::bytea END END
    FROM decided v
    WHERE j.id = v.id
    RETURNING v.state, v.becomes
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
    SELECT id, token, bucket_id, bucket_epoch, 'lost' FROM decided WHERE state = 'PROCESSING' AND becomes = 'HELD'
    ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS moved, count(*) FILTER (WHERE state = 'PROCESSING') AS rescued,
       count(*) FILTER (WHERE becomes = 'FAILED') AS failed
FROM moved
