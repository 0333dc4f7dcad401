-- 0009 confirmation: jobs that wait for a confirmation from outside, by the time it has to come.

CREATE INDEX job_unconfirmed ON job (expires_at) WHERE state = 'WAITING' AND expires_at IS NOT NULL;
