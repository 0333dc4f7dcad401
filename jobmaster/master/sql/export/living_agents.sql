-- living_agents: agents that own buckets
-- in: nothing
-- out: agents bigint
-- move: nothing
-- fence: none
-- index: none; there are few agents
SELECT count(*) AS agents FROM agent_status WHERE healthy AND mode <> 'leader'
