-- left: what keeps a cluster from being empty
-- in: nothing
-- out: buckets bigint (open ones), overdue bigint (agents without a death certificate whose lease has run out), in_flight boolean,
--      waiting boolean (jobs that can be moved), workflows bigint, batches bigint (that have not ended)
-- move: nothing
-- fence: none, it reads
-- index: job_by_bucket, job_due
SELECT (SELECT count(*) FROM bucket WHERE state <> 'READY_TO_DELETE') AS buckets,
       (SELECT count(*) FROM agent WHERE state IN ('ACTIVE', 'STOPPING') AND lease_until < clock_timestamp()) AS overdue,
       EXISTS (SELECT FROM job WHERE state IN ('ASSIGNED', 'PROCESSING')) AS in_flight,
       EXISTS (SELECT FROM job WHERE state = 'HELD' AND stays_here(id, headers) IS FALSE)
           OR EXISTS (SELECT FROM job WHERE state = 'WAITING' AND stays_here(id, headers) IS FALSE) AS waiting,
       (SELECT count(*) FROM workflow WHERE ended_at IS NULL) AS workflows,
       (SELECT count(*) FROM batch WHERE ended_at IS NULL) AS batches
