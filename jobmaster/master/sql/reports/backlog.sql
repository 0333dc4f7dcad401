-- backlog: HELD jobs of each lane and priority: all, due, due for longer than a grace time, and the oldest due time
-- in: $1 double precision seconds of grace
-- in: $2 integer jobs that each count counts at most
-- out: lane text, priority smallint, held bigint, due bigint, overdue bigint, oldest_us bigint
-- move: nothing
-- fence: none
-- index: job_due, one probe for each group and at most $2 entries of it for each count
WITH RECURSIVE groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
)
SELECT g.lane, g.priority,
       (SELECT count(*) FROM (
           SELECT FROM job j WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority LIMIT $2::integer
       ) AS counted) AS held,
       (SELECT count(*) FROM (
           SELECT FROM job j WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
             AND j.due_at <= statement_timestamp() LIMIT $2
       ) AS counted) AS due,
       (SELECT count(*) FROM (
           SELECT FROM job j WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
             AND j.due_at <= statement_timestamp() - make_interval(secs => $1::double precision) LIMIT $2
       ) AS counted) AS overdue,
       (SELECT to_us(j.due_at) FROM job j WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
        ORDER BY j.due_at LIMIT 1) AS oldest_us
FROM groups g
ORDER BY g.lane, g.priority DESC
