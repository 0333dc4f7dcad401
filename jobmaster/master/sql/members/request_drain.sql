-- request_drain: an operator asks an agent to leave; it reads that with its next renewal
-- in: $1 uuid agent
-- in: $2 text who asks
-- out: id uuid
-- move: nothing
-- fence: compare-and-set on the agent's row: only of the living
-- index: agent_pkey
WITH asked AS (
    UPDATE agent SET drain_requested = true WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING') RETURNING id
), told AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $2::text, 'agent drain', id::text FROM asked
)
SELECT id FROM asked
