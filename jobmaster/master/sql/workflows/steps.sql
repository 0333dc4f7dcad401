-- steps: the steps of a workflow
-- in: $1 uuid the workflow
-- out: step integer, name text, state text, runs_on text, parents integer[], handler text, job_id uuid, tries integer, error text
-- move: nothing
-- fence: none, one snapshot
-- index: workflow_step_pkey
SELECT step, name, state, runs_on, parents, handler, job_id, tries, error FROM workflow_step WHERE workflow = $1::uuid ORDER BY step
