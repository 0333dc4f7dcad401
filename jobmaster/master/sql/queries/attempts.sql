-- attempts: every recorded line of one job, oldest first
-- in: $1 uuid job
-- out: token integer, bucket_id uuid, bucket_epoch bigint, concluding boolean, outcome text, at timestamptz, ran_us bigint, error bytea, refused_at timestamptz, refused_count integer
-- move: nothing
-- fence: none
-- index: primary keys of attempt and job, one partition each
SELECT token, bucket_id, bucket_epoch, false AS concluding, outcome, at, ran_us, error, refused_at, refused_count
FROM attempt_kept
WHERE job_id = $1::uuid
UNION ALL
SELECT token, bucket_id, bucket_epoch, true, state::text, changed_at, ran_us, error, NULL, 0
FROM job_kept
WHERE id = $1::uuid AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
ORDER BY concluding, token, at
