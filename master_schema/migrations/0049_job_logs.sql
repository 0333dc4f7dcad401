-- 0049 job logs: lines that the runs of a job have written.
-- programs: >= 0048

-- One line of a run. No statement that decides about a job reads it. A line is written once and not changed.
CREATE TABLE job_log (
    job_id           uuid NOT NULL,
    token            integer NOT NULL,              -- of the run
    number           integer NOT NULL,              -- of the line in its run, from 1; a gap: lines were dropped
    at               timestamptz NOT NULL,          -- by the clock of the agent
    level            smallint NOT NULL,             -- as in logging of Python: 20 is info, 30 warning
    text             text NOT NULL,
    PRIMARY KEY (job_id, token, number)
);
