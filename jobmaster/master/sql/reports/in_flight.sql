-- in_flight: jobs in flight per bucket, as the master knows them (short ones never show here)
-- in: nothing
-- out: bucket_id uuid, assigned bigint, processing bigint
-- move: nothing
-- fence: none
-- index: job_in_flight
SELECT bucket_id, count(*) FILTER (WHERE state = 'ASSIGNED') AS assigned, count(*) FILTER (WHERE state = 'PROCESSING') AS processing
FROM job
WHERE state IN ('ASSIGNED', 'PROCESSING')
GROUP BY bucket_id
