-- recorded_attempts: lines of attempts that did not conclude their job, written by some transactions
-- in: $1 bigint first transaction
-- in: $2 bigint transaction that is the first one outside
-- in: $3 timestamptz no line of these transactions is of an earlier time
-- in: $4 uuid lowest job id
-- in: $5 uuid highest job id, itself outside
-- in: $6 uuid[] buckets, NULL = any
-- out: distance bigint (of the transaction from the first one), job_id uuid, token integer, bucket_id uuid,
--      bucket_epoch bigint, outcome text, at timestamptz, ran_us bigint, error text, refused_at timestamptz,
--      refused_count integer
-- move: nothing
-- fence: every transaction below $2 has ended when $2 was taken, so nothing can come in below it any more
--        A row that was moved, or marked as refused, bears the transaction that recorded it, so it does not come again.
--        The time: see recorded_jobs
-- index: none, see recorded_jobs
SELECT distance,
       job_id, token, bucket_id, bucket_epoch, outcome, at, ran_us, convert_from(error, 'UTF8') AS error, refused_at,
       refused_count
FROM (
    SELECT coalesce(recorded_xid - $1::bigint, (xmin::text::bigint - $1) & 4294967295) AS distance, * FROM attempt
    WHERE at >= $3::timestamptz OR recorded_xid IS NOT NULL
    UNION ALL
    SELECT coalesce(recorded_xid - $1, (xmin::text::bigint - $1) & 4294967295) AS distance, * FROM attempt_detached
    WHERE at >= $3 OR recorded_xid IS NOT NULL
) AS kept
WHERE distance >= 0 AND distance < $2::bigint - $1
  AND job_id >= $4::uuid AND job_id < $5::uuid
  AND ($6::uuid[] IS NULL OR bucket_id = ANY ($6::uuid[]))
