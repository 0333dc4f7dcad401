-- 0085 finished files: a submit that was killed does not read again what it has written. A file of the source is finished when
-- every row of it is a job; a file with a refused row is not, so that the refused rows of a backfill lie in one place.
-- Deleted with the end of the backfill's run.
-- programs: >= 0084

CREATE TABLE pipeline_file (
    name             text NOT NULL,           -- of the backfill
    file             bigint NOT NULL,         -- digest of its path, size and time, and of how its rows were read
    run_id           text NOT NULL,
    rows             bigint NOT NULL,
    PRIMARY KEY (name, file)
);
