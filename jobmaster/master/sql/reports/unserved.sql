-- unserved: handlers of overdue jobs in the master that no owner of a bucket of their lane and priority
--           has, or has with the capabilities that they require
-- in: $1 double precision seconds by which a job is overdue
-- in: $2 integer jobs that are looked at in each lane and priority, the oldest first, and of what is put off for each handler
-- out: lane text, priority smallint, handler text, jobs bigint (at most $2 of each kind), oldest_us bigint, known boolean
--      (some living agent has the handler), active boolean (the lane and priority have an ACTIVE bucket), frozen boolean (they
--      have a FROZEN one), requires text[] (owners there have the handler, and none of them these capabilities)
-- move: nothing
-- fence: none. An agent lives until its certificate: a lease that ran out while the master was away proves nothing
-- index: job_due, one probe for each group and its oldest rows; put_off_kind, one probe for each kind; the tables of agents and
--        buckets are small
WITH RECURSIVE groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
), kinds AS (
    (SELECT lane, priority, handler FROM put_off ORDER BY lane, priority, handler LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority, next.handler
    FROM kinds k, LATERAL (
        SELECT lane, priority, handler FROM put_off
        WHERE (lane, priority, handler) > (k.lane, k.priority, k.handler)
        ORDER BY lane, priority, handler LIMIT 1
    ) AS next
), waiting AS (
    SELECT g.lane, g.priority, front.handler, front.due_at, required_words(front.headers) AS words
    FROM groups g, LATERAL (
        SELECT handler, due_at, headers FROM job
        WHERE state = 'HELD' AND lane = g.lane AND priority = g.priority
          AND due_at <= statement_timestamp() - make_interval(secs => $1::double precision)
        ORDER BY due_at LIMIT $2::integer
    ) AS front
    UNION ALL
    SELECT k.lane, k.priority, k.handler, away.due_at, '{}'::text[]
    FROM kinds k, LATERAL (
        SELECT due_at FROM put_off p
        WHERE p.lane = k.lane AND p.priority = k.priority AND p.handler = k.handler
        ORDER BY due_at LIMIT $2
    ) AS away
), living AS MATERIALIZED (
    SELECT id, handlers, capabilities FROM agent WHERE state IN ('ACTIVE', 'STOPPING')
), owned AS MATERIALIZED (
    SELECT b.lane, b.priority, a.handlers, a.capabilities FROM bucket b JOIN living a ON a.id = b.owner WHERE b.state = 'ACTIVE'
)
SELECT w.lane, w.priority, w.handler, count(*) AS jobs, to_us(min(w.due_at)) AS oldest_us,
       EXISTS (SELECT FROM living a WHERE w.handler = ANY (a.handlers)) AS known,
       EXISTS (SELECT FROM owned o WHERE o.lane = w.lane AND o.priority = w.priority) AS active,
       EXISTS (SELECT FROM bucket b WHERE b.lane = w.lane AND b.priority = w.priority AND b.state = 'FROZEN') AS frozen,
       CASE WHEN EXISTS (
           SELECT FROM owned o WHERE o.lane = w.lane AND o.priority = w.priority AND w.handler = ANY (o.handlers)
       ) THEN w.words ELSE '{}' END AS requires
FROM waiting w
WHERE NOT EXISTS (
    SELECT FROM owned o WHERE o.lane = w.lane AND o.priority = w.priority AND w.handler = ANY (o.handlers)
      AND w.words <@ o.capabilities
)
GROUP BY w.lane, w.priority, w.handler, 9
ORDER BY w.lane, w.priority DESC, w.handler, 9
