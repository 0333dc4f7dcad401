-- cancel_waiting: jobs with a cancel request that lie unclaimed in buckets of the caller end now
-- in: $1 uuid[] buckets
-- in: $2 bigint[] their epochs
-- in: $3 uuid[] ids, none of which the caller has in memory
-- in: $4 uuid lowest id
-- in: $5 uuid highest id
-- out: id uuid, bucket_id uuid, due_at timestamptz, ended boolean (by this call; otherwise it had been cancelled before)
-- move: ASSIGNED -> CANCELLED
-- fence: bucket and epoch on the row, still ASSIGNED, and the request; locked in id order. No token, because a job with a
--        request gets no other assignment; no bucket lock, because the present owner of the bucket would write the same. The
--        identity stays, so a copy that is claimed all the same is refused by the row. Final rows are only read: a caller
--        whose first answer was lost finds what it has ended.
-- index: job_pkey; the bounds prune partitions. The condition on the bucket is no join, or job_by_bucket would be read whole
WITH mine AS MATERIALIZED (
    SELECT j.id, j.bucket_id, j.bucket_epoch, j.due_at, j.state
    FROM job j
    WHERE j.id = ANY ($3::uuid[]) AND j.id BETWEEN $4::uuid AND $5::uuid AND j.cancel_requested
      AND j.state IN ('ASSIGNED', 'CANCELLED')
    ORDER BY j.id
    FOR UPDATE
), here AS MATERIALIZED (
    SELECT * FROM mine
    WHERE (bucket_id, bucket_epoch) IN (SELECT id, epoch FROM unnest($1::uuid[], $2::bigint[]) AS b (id, epoch))
), ended AS (
    UPDATE job j
    SET state = 'CANCELLED', expires_at = NULL, changed_at = clock_timestamp()
    FROM here
    WHERE here.state = 'ASSIGNED' AND j.id = here.id AND j.id BETWEEN $4 AND $5
)
SELECT id, bucket_id, due_at, state = 'ASSIGNED' AS ended FROM here
