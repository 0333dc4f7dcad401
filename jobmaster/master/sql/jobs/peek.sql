-- peek: the rows of some jobs, to distinguish a refusal from an earlier success of the same caller
-- in: $1 uuid[] ids
-- in: $2 uuid lowest of them
-- in: $3 uuid highest of them
-- out: id uuid, state text, token integer, bucket_id uuid, bucket_epoch bigint, cancel_requested boolean, due_at timestamptz
-- move: nothing
-- fence: none; it decides nothing
-- index: job_pkey; the bounds prune partitions
SELECT id, state::text AS state, token, bucket_id, bucket_epoch, cancel_requested, due_at
FROM job
WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2::uuid AND $3::uuid
