-- get: one workflow, without its steps
-- in: $1 uuid its id
-- out: id uuid, name text, state text, started_us bigint, ended_us bigint, steps bigint, ended_steps bigint, failed_steps bigint
-- move: nothing
-- fence: none, one snapshot
-- index: workflow_pkey, workflow_step_pkey
SELECT w.id, w.name, w.state, to_us(w.started_at) AS started_us, to_us(w.ended_at) AS ended_us, s.steps, s.ended_steps, s.failed_steps
FROM workflow w CROSS JOIN LATERAL (
    SELECT count(*) AS steps, count(*) FILTER (WHERE s.state NOT IN ('PENDING', 'STARTED')) AS ended_steps,
           count(*) FILTER (WHERE s.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS failed_steps
    FROM workflow_step s WHERE s.workflow = w.id AND s.runs_on <> 'undo'
) AS s
WHERE w.id = $1::uuid
