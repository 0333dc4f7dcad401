-- I15: the steps of a workflow are what the ends of its jobs make them.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (workflow and step), detail, total
-- why:   a step ends in the statement that ends its job, and its continuation is made in the same one: so no final job leaves its
--        step STARTED, no step has ended in another state than its job, no step waits whose parents have all ended, and a
--        workflow that has not ended has a step that runs.
-- index: workflow_pkey from the floor on, workflow_state for those that have not ended; primary keys of workflow_step and job.
WITH seen AS MATERIALIZED (
    SELECT id, ended_at FROM workflow WHERE id >= $2::uuid
    UNION
    SELECT id, ended_at FROM workflow WHERE state IN ('RUNNING', 'FAILING', 'CANCELLING', 'COMPENSATING')
), unended AS MATERIALIZED (
    SELECT id FROM seen WHERE ended_at IS NULL
)
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT format('%s %s', s.workflow, s.step) AS subject, format('it is %s, and its job %s is %s', s.state, j.id, j.state) AS detail
    FROM seen w JOIN workflow_step s ON s.workflow = w.id JOIN job j ON j.id = s.job_id
    WHERE s.job_id >= $2::uuid
      AND (CASE WHEN s.state = 'STARTED' THEN j.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
                WHEN s.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') AND s.error IS NULL THEN j.state::text <> s.state
                ELSE false END)
    UNION ALL
    SELECT format('%s %s', s.workflow, s.step), format('it is STARTED, and its job %s does not exist', s.job_id)
    FROM seen w JOIN workflow_step s ON s.workflow = w.id
    WHERE s.state = 'STARTED' AND s.job_id >= $2 AND NOT EXISTS (SELECT FROM job j WHERE j.id = s.job_id)
    UNION ALL
    SELECT format('%s %s', s.workflow, s.step), 'it waits, and its parents have ended'
    FROM unended w JOIN workflow_step s ON s.workflow = w.id
    WHERE s.state = 'PENDING' AND s.runs_on <> 'undo'
      AND NOT EXISTS (SELECT FROM workflow_step p
                      WHERE p.workflow = s.workflow AND p.step = ANY (s.parents) AND p.state IN ('PENDING', 'STARTED'))
    UNION ALL
    SELECT w.id::text, 'it has not ended, and no step of it runs'
    FROM unended w
    WHERE NOT EXISTS (SELECT FROM workflow_step s WHERE s.workflow = w.id AND s.state = 'STARTED')
    UNION ALL
    SELECT w.id::text, 'it has ended, and a step of it waits or runs'
    FROM seen w
    WHERE w.ended_at IS NOT NULL
      AND EXISTS (SELECT FROM workflow_step s WHERE s.workflow = w.id AND s.state IN ('PENDING', 'STARTED'))
) found
ORDER BY subject
LIMIT $1::int
