-- 0015 sources: which rows of a source were handed in, whatever became of their jobs. None of it is on the path of a job.
-- programs: >= 0014

-- Data that is handed in again and again, such as a table that grows. Its rows are remembered by their keys and not by their
-- jobs, so that retention may drop a job and its row is still not handed in twice.
CREATE TABLE pipeline_source (
    id               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             text NOT NULL UNIQUE,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    adopted_at       timestamptz                  -- when the rows of an older batch of that name were taken over
);

-- About 100 bytes a row with its index; `jobmaster pipeline forget` removes those of one source.
CREATE TABLE pipeline_key (
    source           integer NOT NULL,
    row_key          uuid NOT NULL,               -- the part of the job's id that is made of handler and key
    job_id           uuid NOT NULL,               -- the job that was made of the row
    PRIMARY KEY (source, row_key)
);
