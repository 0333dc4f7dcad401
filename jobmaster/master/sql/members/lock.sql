-- lock: an agent's row, so that no bucket can be made for it meanwhile
-- in: $1 uuid agent
-- out: state text
-- move: nothing
-- fence: FOR UPDATE: conflicts with the FOR SHARE of a bucket being made
-- index: agent_pkey
SELECT state::text AS state FROM agent WHERE id = $1::uuid FOR UPDATE
