-- peek: what the rows of some jobs say, to tell a refusal from our own earlier success
-- in: $1 uuid[] ids
-- in: $2 uuid lowest of them
-- in: $3 uuid highest of them
-- out: id uuid, state text, token integer, bucket_id uuid, bucket_epoch bigint, cancel_requested boolean, due_at timestamptz
-- move: nothing
-- fence: none, it decides nothing by itself
-- index: job_pkey; the bounds prune partitions
SELECT id, state::text AS state, token, bucket_id, bucket_epoch, cancel_requested, due_at
FROM job
WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2::uuid AND $3::uuid
