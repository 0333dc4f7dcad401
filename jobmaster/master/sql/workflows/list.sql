-- list: workflows, the newest first
-- in: $1 text[] states
-- in: $2 text name, NULL = any
-- in: $3 uuid only those before this one, NULL = all
-- in: $4 integer limit
-- out: id uuid, name text, state text, started_us bigint, ended_us bigint, steps bigint, ended_steps bigint, failed_steps bigint
-- move: nothing
-- fence: none, one snapshot
-- index: workflow_state from its end, once for each state; workflow_step_pkey for each workflow of the answer. A name is read from
--        the rows: a rare one reads all workflows of the states.
SELECT w.id, w.name, w.state, to_us(w.started_at) AS started_us, to_us(w.ended_at) AS ended_us, s.steps, s.ended_steps, s.failed_steps
FROM (
    SELECT f.*
    FROM unnest($1::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT * FROM workflow
        WHERE state = wanted.state AND id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          AND ($2::text IS NULL OR name = $2)
        ORDER BY id DESC
        LIMIT $4::integer
    ) AS f
    ORDER BY f.id DESC
    LIMIT $4
) AS w CROSS JOIN LATERAL (
    SELECT count(*) AS steps, count(*) FILTER (WHERE s.state NOT IN ('PENDING', 'STARTED')) AS ended_steps,
           count(*) FILTER (WHERE s.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS failed_steps
    FROM workflow_step s WHERE s.workflow = w.id AND s.runs_on <> 'undo'
) AS s
ORDER BY w.id DESC
