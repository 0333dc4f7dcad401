-- bucket_rows: in-flight rows that name a bucket, a page in id order
-- in: $1 uuid bucket
-- in: $2 uuid last id of the page before, NULL = from the start
-- in: $3 integer limit
-- out: id uuid, token integer, bucket_epoch bigint, state text, changed_at timestamptz
-- move: nothing
-- fence: none; what is done about a row compares its identity
-- index: job_by_bucket
SELECT id, token, bucket_epoch, state::text AS state, changed_at
FROM job
WHERE bucket_id = $1::uuid AND state IN ('ASSIGNED', 'PROCESSING') AND id > coalesce($2::uuid, uuid_floor('epoch'))
ORDER BY id
LIMIT $3::integer
