-- steps: the steps of a workflow
-- in: $1 uuid the workflow
-- out: step integer, name text, state text, runs_on text, parents integer[], handler text, job_id uuid, tries integer, error text (why it
--      failed without a job), job_error bytea (of the job of a step that did not succeed; NULL: it has left the master)
-- move: nothing
-- fence: none, one snapshot
-- index: workflow_step_pkey; job_pkey for each step that failed, one partition each
SELECT s.step, s.name, s.state, s.runs_on, s.parents, s.handler, s.job_id, s.tries, s.error, j.error AS job_error
FROM workflow_step s LEFT JOIN job j ON j.id = s.job_id AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED') AND s.error IS NULL
WHERE s.workflow = $1::uuid
ORDER BY s.step
