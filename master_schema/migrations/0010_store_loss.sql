-- 0010 store loss: buckets that their stores have lost under a living owner, and what became of the jobs that had no row.

CREATE TABLE store_loss (
    bucket_id      uuid NOT NULL,
    epoch          bigint NOT NULL,
    store          text NOT NULL,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    at_risk        integer NOT NULL,
    salvaged       integer NOT NULL,
    reason         text NOT NULL,
    PRIMARY KEY (bucket_id, epoch)
);
