-- preview: what a move to another master would take, and what would stay
-- in: nothing
-- out: held bigint, waiting bigint (jobs that move), buckets bigint (open ones), in_flight bigint (jobs with a row in them),
--      signals bigint (kept ones), schedules bigint, workflows bigint, batches bigint (that have not ended), stay bigint (unfinished
--      jobs of these)
-- move: nothing
-- fence: none, it reads
-- index: job_due, job_by_bucket; each unfinished job is read once
SELECT count(*) FILTER (WHERE state = 'HELD' AND NOT stays) AS held, count(*) FILTER (WHERE state = 'WAITING' AND NOT stays) AS waiting,
       (SELECT count(*) FROM bucket WHERE state <> 'READY_TO_DELETE') AS buckets,
       count(*) FILTER (WHERE state IN ('ASSIGNED', 'PROCESSING')) AS in_flight,
       (SELECT count(*) FROM signal WHERE kept_until > clock_timestamp()) AS signals,
       (SELECT count(*) FROM schedule WHERE retired_at IS NULL) AS schedules,
       (SELECT count(*) FROM workflow WHERE ended_at IS NULL) AS workflows,
       (SELECT count(*) FROM batch WHERE ended_at IS NULL) AS batches, count(*) FILTER (WHERE stays) AS stay
FROM (SELECT state, stays_here(id, headers) AS stays FROM job WHERE state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')) AS unfinished
