-- list: workflows, the newest first
-- in: $1 uuid[] ids, NULL = any
-- in: $2 text[] states, NULL = any
-- in: $3 text name, NULL = any
-- in: $4 uuid only those before this one, NULL = all
-- in: $5 integer limit
-- out: id uuid, name text, state text, started_us bigint, ended_us bigint, steps bigint, ended_steps bigint, failed_steps bigint
-- move: nothing
-- fence: none, one snapshot
-- index: workflow_pkey from its end; workflow_step_pkey for each
SELECT w.id, w.name, w.state, to_us(w.started_at) AS started_us, to_us(w.ended_at) AS ended_us, s.steps, s.ended_steps, s.failed_steps
FROM (
    SELECT * FROM workflow
    WHERE ($1::uuid[] IS NULL OR id = ANY ($1)) AND ($2::text[] IS NULL OR state = ANY ($2))
      AND ($3::text IS NULL OR name = $3) AND ($4::uuid IS NULL OR id < $4)
    ORDER BY id DESC
    LIMIT $5::integer
) AS w CROSS JOIN LATERAL (
    SELECT count(*) AS steps, count(*) FILTER (WHERE s.state NOT IN ('PENDING', 'STARTED')) AS ended_steps,
           count(*) FILTER (WHERE s.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS failed_steps
    FROM workflow_step s WHERE s.workflow = w.id AND s.runs_on <> 'undo'
) AS s
ORDER BY w.id DESC
