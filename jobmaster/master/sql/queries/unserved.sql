-- unserved: which of some jobs wait in the master for a handler that no owner of a matching bucket has, or
--           for a capability
-- in: $1 uuid[] ids
-- in: $2 uuid lowest of them
-- in: $3 uuid highest of them
-- out: id uuid, lane text, priority smallint, handler text, known boolean (some living agent has the handler), active boolean
--      (the lane and priority have an ACTIVE bucket), frozen boolean (they have a FROZEN one), requires text[] (owners
--      there have the handler, and none of them these capabilities)
-- move: nothing
-- fence: none
-- index: job_pkey; the bounds prune partitions. The tables of agents and buckets are small
WITH living AS MATERIALIZED (
    SELECT id, handlers, capabilities FROM agent WHERE state IN ('ACTIVE', 'STOPPING')
), owned AS MATERIALIZED (
    SELECT b.lane, b.priority, a.handlers, a.capabilities FROM bucket b JOIN living a ON a.id = b.owner WHERE b.state = 'ACTIVE'
)
SELECT j.id, j.lane, j.priority, j.handler,
       EXISTS (SELECT FROM living a WHERE j.handler = ANY (a.handlers)) AS known,
       EXISTS (SELECT FROM owned o WHERE o.lane = j.lane AND o.priority = j.priority) AS active,
       EXISTS (SELECT FROM bucket b WHERE b.lane = j.lane AND b.priority = j.priority AND b.state = 'FROZEN') AS frozen,
       CASE WHEN EXISTS (
           SELECT FROM owned o WHERE o.lane = j.lane AND o.priority = j.priority AND j.handler = ANY (o.handlers)
       ) THEN required_words(j.headers) ELSE '{}' END AS requires
FROM job j
WHERE j.id = ANY ($1::uuid[]) AND j.id BETWEEN $2::uuid AND $3::uuid AND j.state = 'HELD'
  AND NOT EXISTS (
      SELECT FROM owned o WHERE o.lane = j.lane AND o.priority = j.priority AND j.handler = ANY (o.handlers)
        AND required_words(j.headers) <@ o.capabilities
  )
ORDER BY j.id
