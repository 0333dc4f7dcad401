-- 0080 inserted steps: a COPY of outcomes asks no trigger for each row.

-- The row of a step's job is inserted in the transaction in which the step becomes STARTED (workflow_run), and it is deleted only
-- after its end. So no INSERT of an outcome finds its step STARTED. If a failover has forgotten that transaction, the outcome of
-- a copy is inserted, the step is not STARTED, and its next start finds the outcome (workflow_run). Workflows go on at
-- workflow_step_updated.
DROP TRIGGER workflow_step_inserted ON job;
