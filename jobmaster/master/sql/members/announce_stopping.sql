-- announce_stopping: an agent leaves; it keeps its lease and its buckets until they are empty
-- in: $1 uuid agent
-- out: state text
-- move: ACTIVE -> STOPPING
-- fence: compare-and-set on the agent's own row; a certificate that came first stands
-- index: agent_pkey
UPDATE agent SET state = 'STOPPING' WHERE id = $1::uuid AND state = 'ACTIVE' RETURNING state::text AS state
