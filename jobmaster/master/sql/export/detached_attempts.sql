-- detached_attempts: the same of their attempts; the table's own name replaces attempt_detached
-- in: $1 text first place (ctid)
-- in: $2 text place beyond the last one (ctid)
-- out: job_id uuid, token integer, bucket_id uuid, bucket_epoch bigint, outcome text, at timestamptz, ran_us bigint,
--      error text, refused_at timestamptz, refused_count integer
-- move: nothing
-- fence: none, and no snapshot: a detached range has no writers, so places (ctid) do not change
-- index: none; a range of pages
SELECT job_id, token, bucket_id, bucket_epoch, outcome, at, ran_us, convert_from(error, 'UTF8') AS error, refused_at,
       refused_count
FROM attempt_detached
WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
