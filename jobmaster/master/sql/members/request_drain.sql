-- request_drain: an operator requests that an agent leaves; it reads that with its next renewal
-- in: $1 uuid agent
-- in: $2 text the actor
-- out: id uuid
-- move: nothing
-- fence: compare-and-set on the agent's row: only a living one
-- index: agent_pkey
WITH requested AS (
    UPDATE agent SET drain_requested = true WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING') RETURNING id
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $2::text, 'agent drain', id::text FROM requested
)
SELECT id FROM requested
