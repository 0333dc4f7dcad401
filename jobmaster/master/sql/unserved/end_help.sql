-- end_help: an agent that helps out is not needed any more where a configured owner can run the same jobs
-- in: nothing
-- out: lane text, priority smallint, handler text, helper uuid
-- move: nothing
-- fence: none: its bucket completes like any other. A request whose agent has ended goes as well
-- index: none, the table is nearly always empty; the tables of agents and buckets are small
DELETE FROM bucket_request r
WHERE NOT EXISTS (SELECT FROM agent a WHERE a.id = r.agent_id AND a.state = 'ACTIVE' AND NOT a.drain_requested)
   OR EXISTS (
       SELECT FROM bucket b JOIN agent a ON a.id = b.owner
       WHERE b.state = 'ACTIVE' AND b.lane = r.lane AND b.priority = r.priority AND a.id <> r.agent_id
         AND a.state = 'ACTIVE' AND NOT a.drain_requested AND r.handler = ANY (a.handlers)
         AND NOT EXISTS (
             SELECT FROM bucket_request o WHERE o.agent_id = a.id AND o.lane = r.lane AND o.priority = r.priority
         )
   )
RETURNING r.lane, r.priority, r.handler, r.agent_id AS helper
