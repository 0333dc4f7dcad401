-- release: assigned jobs without a copy in their bucket go back to the master
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 uuid[] ids
-- in: $4 integer[] tokens
-- in: $5 uuid lowest id
-- in: $6 uuid highest id
-- out: id uuid, state text
-- move: ASSIGNED -> HELD|CANCELLED
-- fence: identity (token, bucket, epoch) on the row, still ASSIGNED, locked in id order. The token stays: a copy that lies
--        in the store after all names a bucket, the row none, and the next assignment adds one.
-- index: job_pkey; the bounds prune partitions. IS NOT DISTINCT FROM, because job_by_bucket is no help: it would read the
--        whole bucket and compare each row with each id
WITH mine AS MATERIALIZED (
    SELECT j.id
    FROM unnest($3::uuid[], $4::integer[]) AS copy (id, token)
    JOIN job j ON j.id = copy.id AND j.id BETWEEN $5::uuid AND $6::uuid
    WHERE j.token = copy.token AND j.bucket_id IS NOT DISTINCT FROM $1::uuid AND j.bucket_epoch = $2::bigint AND j.state = 'ASSIGNED'
    ORDER BY j.id
    FOR UPDATE OF j
)
UPDATE job j
SET state = CASE WHEN j.cancel_requested THEN 'CANCELLED'::job_state ELSE 'HELD' END,
    bucket_id = CASE WHEN j.cancel_requested THEN j.bucket_id END,
    bucket_epoch = CASE WHEN j.cancel_requested THEN j.bucket_epoch END,
    due_at = coalesce(j.due_at, clock_timestamp()),
    expires_at = CASE WHEN NOT j.cancel_requested THEN expires_of(j.headers) END,
    changed_at = clock_timestamp()
FROM mine
WHERE j.id = mine.id AND j.id BETWEEN $5 AND $6
RETURNING j.id, j.state::text AS state
