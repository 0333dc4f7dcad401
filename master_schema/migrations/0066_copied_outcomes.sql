-- 0066 copied outcomes: a COPY of outcomes evaluates one index condition and one trigger condition less for each row.

-- By bucket; an owner's renewal reads those with a cancel request alone.
CREATE INDEX job_by_bucket ON job (bucket_id, cancel_requested) WHERE state IN ('ASSIGNED', 'PROCESSING');

DROP INDEX job_in_flight, job_cancel;

-- As in 0030. The job of a step has been assigned (token 2 and more) before it ends: the cheap condition comes first.
DROP TRIGGER workflow_step_inserted ON job;
CREATE TRIGGER workflow_step_inserted AFTER INSERT ON job FOR EACH ROW
WHEN (NEW.token > 1 AND position('"workflow":['::bytea IN NEW.headers) > 0
      AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED'))
EXECUTE FUNCTION workflow_step_ended();
