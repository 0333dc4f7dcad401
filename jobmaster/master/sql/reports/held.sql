-- held: HELD jobs per lane and priority: all, due, due for longer than a grace time, and the oldest due time
-- in: $1 double precision seconds of grace
-- out: lane text, priority smallint, held bigint, due bigint, overdue bigint, stranded bigint (those of overdue whose handler
--      no owner of an ACTIVE bucket of the lane and priority has), oldest_us bigint
-- move: nothing
-- fence: none
-- index: job_due, one pass over what is HELD; the tables of agents and buckets are small
SELECT h.lane, h.priority, sum(h.held)::bigint AS held, sum(h.due)::bigint AS due, sum(h.overdue)::bigint AS overdue,
       coalesce(sum(h.overdue) FILTER (WHERE NOT EXISTS (
           SELECT FROM bucket b JOIN agent a ON a.id = b.owner
           WHERE b.state = 'ACTIVE' AND b.lane = h.lane AND b.priority = h.priority
             AND a.state IN ('ACTIVE', 'STOPPING') AND h.handler = ANY (a.handlers)
       )), 0)::bigint AS stranded,
       to_us(min(h.oldest)) AS oldest_us
FROM (
    SELECT lane, priority, handler, count(*) AS held,
           count(*) FILTER (WHERE due_at <= clock_timestamp()) AS due,
           count(*) FILTER (WHERE due_at <= clock_timestamp() - make_interval(secs => $1::double precision)) AS overdue,
           min(due_at) AS oldest
    FROM job
    WHERE state = 'HELD'
    GROUP BY lane, priority, handler
) h
GROUP BY h.lane, h.priority
ORDER BY h.lane, h.priority DESC
