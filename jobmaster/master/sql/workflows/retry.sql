-- retry: a workflow that has failed, or was cancelled, goes on from the steps that failed
-- in: $1 uuid the workflow
-- in: $2 text the actor
-- out: resumed boolean (false: nothing was changed)
-- move: none -> WAITING|HELD
-- fence: the workflow's row is locked, and it is FAILED or CANCELLED, and not undone
-- index: workflow_pkey, workflow_step_pkey
SELECT workflow_retry($1::uuid, $2::text) AS resumed
