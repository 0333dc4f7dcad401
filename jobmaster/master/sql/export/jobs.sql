-- jobs: the jobs of a range of ids, as the view shows them
-- in: $1 uuid lowest id
-- in: $2 uuid highest id, itself outside
-- in: $3 text[] states, NULL = any
-- in: $4 text[] handlers, NULL = any
-- in: $5 text[] lanes, NULL = any
-- in: $6 text[] priorities, NULL = any
-- in: $7 uuid[] buckets, NULL = any
-- out: id uuid, state text, priority text, priority_level smallint, lane text, handler text, created_at timestamptz,
--      due_at timestamptz, started_at timestamptz, ended_at timestamptz, changed_at timestamptz, waited_us bigint,
--      ran_us bigint, attempt integer, rescues integer, token integer, bucket_id uuid, bucket_epoch bigint,
--      cancel_requested boolean, args json, headers json, result json, error json
-- move: nothing
-- fence: none, it reads; the snapshot of the caller's transaction
-- index: job_pkey, or the whole of a partition; the range prunes partitions
SELECT id, state, priority, priority_level, lane, handler, created_at, due_at, started_at, ended_at, changed_at,
       waited_us, ran_us, attempt, rescues, token, bucket_id, bucket_epoch, cancel_requested, args, headers, result, error
FROM jobs
WHERE id >= $1::uuid AND id < $2::uuid
  AND ($3::text[] IS NULL OR state = ANY ($3::text[]))
  AND ($4::text[] IS NULL OR handler = ANY ($4::text[]))
  AND ($5::text[] IS NULL OR lane = ANY ($5::text[]))
  AND ($6::text[] IS NULL OR priority = ANY ($6::text[]))
  AND ($7::uuid[] IS NULL OR bucket_id = ANY ($7::uuid[]))
