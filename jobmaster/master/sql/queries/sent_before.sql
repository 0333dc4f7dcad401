-- sent_before: the rows of jobs that may have been sent before, and whether there are buckets that the asker does not know
-- in: $1 uuid[] ids
-- in: $2 uuid lowest of them
-- in: $3 uuid highest of them
-- in: $4 uuid[] buckets that the caller has
-- out: strangers boolean (the same in every row), id uuid (null in the only row: no job of these), state text, handler text, args bytea, bucket_id uuid
-- move: nothing
-- fence: none: both answers are of one snapshot, so what had left a bucket that the asker has looked into shows as a row
-- index: job_pkey; the bounds prune partitions. The table of buckets is small
SELECT s.strangers, j.id, j.state::text AS state, j.handler, j.args, j.bucket_id
FROM (
    SELECT EXISTS (
        SELECT FROM bucket b LEFT JOIN unnest($4::uuid[]) AS known (id) ON known.id = b.id
        WHERE known.id IS NULL AND b.state <> 'READY_TO_DELETE'
    ) AS strangers
) s
LEFT JOIN job_kept j ON j.id = ANY ($1::uuid[]) AND j.id BETWEEN $2::uuid AND $3::uuid
