-- cancel: nothing more of a workflow is begun; compensations start when the steps that run have ended
-- in: $1 uuid the workflow
-- in: $2 text the actor
-- out: cancelled boolean (false: nothing was changed)
-- move: none -> HELD
-- fence: the workflow's row is locked, and it is RUNNING or FAILING
-- index: workflow_pkey, workflow_step_pkey
SELECT workflow_cancel($1::uuid, $2::text) AS cancelled
