-- certify_on_proof: a death certificate on proof, or by the agent itself
-- in: $1 uuid agent
-- in: $2 text reason
-- in: $3 boolean its process has ended: its runs are over, and what was lent to it is free at once
-- out: id uuid
-- move: ACTIVE|STOPPING -> DEAD
-- fence: compare-and-set on the agent's row
-- index: agent_pkey
UPDATE agent
SET state = 'DEAD', ended_at = clock_timestamp(), ended_reason = $2::text, process_ended = $3::boolean
WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING')
RETURNING id
