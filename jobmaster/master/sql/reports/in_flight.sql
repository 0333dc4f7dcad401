-- in_flight: jobs in flight per bucket, by their rows in the master (short ones never have one)
-- in: nothing
-- out: bucket_id uuid, assigned bigint, processing bigint
-- move: nothing
-- fence: none
-- index: job_by_bucket
SELECT bucket_id, count(*) FILTER (WHERE state = 'ASSIGNED') AS assigned, count(*) FILTER (WHERE state = 'PROCESSING') AS processing
FROM job
WHERE state IN ('ASSIGNED', 'PROCESSING')
GROUP BY bucket_id
