-- close_drained: a drained bucket is READY_TO_DELETE
-- in: $1 uuid bucket
-- in: $2 bigint epoch
-- in: $3 uuid rescuer
-- in: $4 bigint jobs moved
-- in: $5 bigint jobs rescued
-- out: closed boolean (also true when it was closed before), superseded boolean
-- move: DRAINING -> READY_TO_DELETE
-- fence: compare-and-set on (id, epoch, owner, state), and no in-flight row names the bucket. No new one can appear: binding
--        writes need the lock on this row under an older epoch.
-- index: bucket_pkey, job_by_bucket
WITH before AS MATERIALIZED (
    SELECT id, state FROM bucket WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid FOR UPDATE
), after AS (
    UPDATE bucket b SET state = 'READY_TO_DELETE', changed_at = clock_timestamp()
    FROM before
    WHERE b.id = before.id AND before.state = 'DRAINING'
      AND NOT EXISTS (SELECT FROM job j WHERE j.bucket_id = $1 AND j.state IN ('ASSIGNED', 'PROCESSING'))
    RETURNING b.id
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, actor, reason, jobs_moved, jobs_rescued)
    SELECT id, 'DRAINING', 'READY_TO_DELETE', $2, $3, 'drained', $4::bigint, $5::bigint FROM after
)
SELECT EXISTS (SELECT FROM after) OR EXISTS (SELECT FROM before WHERE state = 'READY_TO_DELETE') AS closed,
       NOT EXISTS (SELECT FROM before WHERE state IN ('DRAINING', 'READY_TO_DELETE')) AS superseded
