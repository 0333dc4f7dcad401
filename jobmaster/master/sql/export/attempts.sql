-- attempts: the lines of attempts that did not conclude their job, of a range of ids
-- in: $1 uuid lowest job id
-- in: $2 uuid highest job id, itself outside
-- in: $3 uuid[] buckets, NULL = any
-- out: job_id uuid, token integer, bucket_id uuid, bucket_epoch bigint, outcome text, at timestamptz, ran_us bigint,
--      error json, refused_at timestamptz, refused_count integer
-- move: nothing
-- fence: none, it reads; the snapshot of the caller's transaction
-- index: attempt_pkey, or the whole of a partition; the range prunes partitions
SELECT job_id, token, bucket_id, bucket_epoch, outcome, at, ran_us, error, refused_at, refused_count
FROM attempts
WHERE job_id >= $1::uuid AND job_id < $2::uuid
  AND ($3::uuid[] IS NULL OR bucket_id = ANY ($3::uuid[]))
