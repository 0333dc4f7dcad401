-- 0043 expiry index: one index of jobs by the time at which something happens to them, instead of three. A COPY of outcomes
-- evaluates the condition of every index on job for each row.

-- HELD: the job expires; WAITING: its confirmation or its signal is too late; PROCESSING: it is given to another agent.
CREATE INDEX job_expires ON job (state, expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('HELD', 'WAITING', 'PROCESSING');

DROP INDEX job_expiring, job_unconfirmed, job_late;
