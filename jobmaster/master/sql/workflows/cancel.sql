-- cancel: nothing more of a workflow is begun but what runs after a failure; the jobs of the steps that run are cancelled
-- in: $1 uuid the workflow
-- in: $2 text the actor
-- out: cancelled boolean (false: nothing was changed), jobs uuid[] (of a workflow that is being cancelled: those of steps that run, or
--      ran until now)
-- move: HELD|WAITING -> CANCELLED
-- move: none -> WAITING|HELD
-- fence: the jobs' rows are locked in the order of their ids, then the workflow's row, and it is RUNNING or FAILING
-- index: workflow_pkey, workflow_step_pkey, job_pkey
SELECT cancelled, jobs FROM workflow_cancel($1::uuid, $2::text)
