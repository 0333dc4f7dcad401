-- 0007 pipeline: what the data pipeline remembers of the batches it wrote. None of it is on the path of a job.

-- A batch of jobs that came from data. Its moment is the time part of every id of the batch, so the same rows handed in again
-- under the same name get the same ids, and the primary key of job lets each in once.
CREATE TABLE pipeline_batch (
    name             text PRIMARY KEY,
    as_of            timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_turn        timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when the next chunk may be written, under a rate
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One run of writing a batch, with what became of its rows. NULL counts: it has not ended (or never will).
CREATE TABLE pipeline_write (
    run_id           text PRIMARY KEY,
    batch            text NOT NULL,
    began_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at         timestamptz,
    offered          bigint,
    inserted         bigint,
    rejected         bigint
);

CREATE INDEX pipeline_write_batch ON pipeline_write (batch, began_at);

-- Rows that a run has put in so far, by the number of the task, counted in the transactions that put them in: exact also when
-- a task was killed after a commit and ran again.
CREATE TABLE pipeline_write_part (
    run_id           text NOT NULL,
    part             integer NOT NULL,
    inserted         bigint NOT NULL,
    PRIMARY KEY (run_id, part)
);
