-- obey: an agent has applied a version of the pauses
-- in: $1 uuid agent
-- in: $2 bigint version
-- out: version bigint (no row: the agent has ended)
-- move: nothing
-- fence: the agent's row, and a living one
-- index: agent_pkey (HOT: nothing indexed changes)
UPDATE agent SET pauses_obeyed = $2::bigint
WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING')
RETURNING pauses_obeyed AS version
