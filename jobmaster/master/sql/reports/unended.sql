-- unended: jobs that have a row and have not ended: those that are due within a time, and all of them
-- in: $1 double precision seconds
-- out: due bigint, jobs bigint
-- move: nothing
-- fence: none
-- index: job_due and job_by_bucket
SELECT count(*) FILTER (
           WHERE state = 'PROCESSING'
              OR (state IN ('HELD', 'ASSIGNED') AND coalesce(due_at, '-infinity') <= clock_timestamp() + make_interval(secs => $1::double precision))
       )::bigint AS due,
       count(*)::bigint AS jobs
FROM job
WHERE state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
