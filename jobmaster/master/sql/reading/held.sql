-- held: HELD jobs per lane and priority: all, due, due for longer than a grace time, and the oldest due time
-- in: $1 double precision seconds of grace
-- out: lane text, priority smallint, held bigint, due bigint, overdue bigint, oldest_us bigint
-- move: nothing
-- fence: none
-- index: job_due, one pass over what is HELD
SELECT lane, priority, count(*) AS held,
       count(*) FILTER (WHERE due_at <= clock_timestamp()) AS due,
       count(*) FILTER (WHERE due_at <= clock_timestamp() - make_interval(secs => $1::double precision)) AS overdue,
       (extract(epoch FROM min(due_at)) * 1000000)::bigint AS oldest_us
FROM job
WHERE state = 'HELD'
GROUP BY lane, priority
ORDER BY lane, priority DESC
