-- 0029 signal index: jobs that wait for a signal, by its key. (An index on job is built before the rest of its migration.)

-- bucket_id IS NULL: the other jobs that are WAITING wait for a confirmation of their run.
CREATE INDEX job_signal ON job (signal_key(headers), id) WHERE state = 'WAITING' AND bucket_id IS NULL;
