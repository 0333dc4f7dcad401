-- sweep: in-flight rows that still name a bucket being drained go back to the master, token + 1
-- in: $1 uuid bucket
-- in: $2 bigint the rescuer's epoch
-- in: $3 uuid rescuer
-- in: $4 integer limit
-- in: $5 integer rescues at which a job fails
-- in: $6 bytea error (JSON) of a job that fails so
-- in: $7 bytea error (JSON) of a job that was started and must not be started again
-- out: moved bigint, rescued bigint (those of moved that were PROCESSING: each counts one rescue),
--      failed bigint (those of moved that became FAILED)
-- move: ASSIGNED|PROCESSING -> HELD|FAILED|CANCELLED
-- fence: the rescuer's bucket lock (id, epoch, owner, DRAINING); rows locked in id order, read under that lock. The former owner of
--        the bucket is forgotten: as the permits of the rows are free from here on, so is what was lent to it, with its last bucket.
--        The lock is that of this update from the beginning: raised later, it could wait for a page that waits for our rows.
-- index: job_by_bucket; then job_pkey, one partition a row
WITH b AS MATERIALIZED (
    SELECT 1 FROM bucket
    WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid AND state = 'DRAINING'
    FOR NO KEY UPDATE
), mine AS MATERIALIZED (
    SELECT j.id, j.state, j.token, j.bucket_epoch, j.cancel_requested,
           j.rescues + CASE j.state WHEN 'PROCESSING' THEN 1 ELSE 0 END AS rescues,
           j.state = 'PROCESSING' AND is_at_most_once(j.headers) AS begun_once
    FROM job j
    WHERE j.bucket_id = $1 AND j.state IN ('ASSIGNED', 'PROCESSING') AND EXISTS (SELECT FROM b)
    ORDER BY j.id
    LIMIT $4::integer
    FOR UPDATE
), forgotten AS (
    UPDATE bucket SET former_owner = NULL WHERE id = $1 AND former_owner IS NOT NULL AND EXISTS (SELECT FROM b)
), decided AS (
    SELECT *, CASE WHEN cancel_requested THEN 'CANCELLED'
                   WHEN begun_once OR state = 'PROCESSING' AND rescues >= $5::integer THEN 'FAILED'
                   ELSE 'HELD' END::job_state AS becomes
    FROM mine
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
        error = CASE v.becomes WHEN 'FAILED' THEN CASE WHEN v.begun_once THEN $7::bytea ELSE $6::bytea END END
    FROM decided v
    WHERE j.id = v.id
    RETURNING v.state, v.becomes
), lines AS (
    INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome)
    SELECT id, token, $1, bucket_epoch, 'lost' FROM decided WHERE state = 'PROCESSING' AND becomes = 'HELD' ORDER BY id
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS moved, count(*) FILTER (WHERE state = 'PROCESSING') AS rescued,
       count(*) FILTER (WHERE becomes = 'FAILED') AS failed
FROM moved
