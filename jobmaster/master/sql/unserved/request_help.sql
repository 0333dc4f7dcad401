-- request_help: request that agents which have the handler open a bucket for unserved jobs
-- in: $1 text[] lanes
-- in: $2 smallint[] priorities
-- in: $3 text[] handlers, one of the unserved jobs of each lane and priority
-- out: lane text, priority smallint, handler text, helper uuid
-- move: nothing
-- fence: insert-or-ignore by lane, priority and handler: one agent gets the request, another only when that one has ended. Of
--        two leaders the second requests the same agent, or none.
-- index: bucket_request_pkey; bucket_owner; the table of agents is small
INSERT INTO bucket_request AS r (lane, priority, handler, agent_id)
SELECT w.lane, w.priority, w.handler, helper.id
FROM unnest($1::text[], $2::smallint[], $3::text[]) AS w (lane, priority, handler),
LATERAL (
    SELECT a.id FROM agent a
    WHERE a.state = 'ACTIVE' AND NOT a.drain_requested AND a.mode IN ('full', 'execution')
      AND a.lease_until > clock_timestamp() AND w.lane = ANY (a.helps) AND w.handler = ANY (a.handlers)
    -- One that helps there already; else the one with the fewest buckets.
    ORDER BY (SELECT count(*) FROM bucket_request o
              WHERE o.agent_id = a.id AND o.lane = w.lane AND o.priority = w.priority) DESC,
             (SELECT count(*) FROM bucket b WHERE b.owner = a.id AND b.state = 'ACTIVE'), a.id
    LIMIT 1
) AS helper
ORDER BY w.lane, w.priority, w.handler
ON CONFLICT (lane, priority, handler) DO UPDATE SET agent_id = EXCLUDED.agent_id, asked_at = clock_timestamp()
WHERE NOT EXISTS (SELECT FROM agent a WHERE a.id = r.agent_id AND a.state = 'ACTIVE' AND NOT a.drain_requested)
RETURNING r.lane, r.priority, r.handler, r.agent_id AS helper
