-- 0033 run progress: how far a handler is, as it reports that itself.
-- programs: >= 0032

-- One line for each job whose handler has reported, of its last run that did. No statement that decides about a job reads it.
-- Half of each page stays free: a report changes the line where it is, and no index.
CREATE TABLE run_progress (
    job_id           uuid PRIMARY KEY,
    token            integer NOT NULL,              -- of the run
    done             double precision NOT NULL,
    total            double precision,              -- NULL: not known
    text             text NOT NULL,
    at               timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
