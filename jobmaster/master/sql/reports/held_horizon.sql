-- held_horizon: HELD jobs by priority and by the time until they are due
-- in: $1 double precision[] bounds in seconds from now, ascending
-- out: priority smallint, band integer (0: before the first bound, 1: before the second, ...), jobs bigint
-- move: nothing
-- fence: none
-- index: job_due, one pass over what is HELD
SELECT priority, width_bucket(extract(epoch FROM due_at - clock_timestamp())::double precision, $1::double precision[]) AS band,
       count(*) AS jobs
FROM job
WHERE state = 'HELD'
GROUP BY priority, band
