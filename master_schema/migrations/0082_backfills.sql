-- 0082 backfills: how far a run of writing is, who writes, the brake by the cluster's own backlog, and pauses. A backfill is
-- what all runs of one name write: of a batch, or of a source whose rows are remembered.

CREATE TABLE pipeline_backfill (
    name             text PRIMARY KEY,
    request          text,                    -- JSON: how `jobmaster pipeline submit` was called, without passwords
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_at        timestamptz,             -- its writers write nothing
    paused_by        text
);

ALTER TABLE pipeline_write
    ADD COLUMN name text,                     -- of the backfill; NULL: the run of an earlier version
    ADD COLUMN total bigint,                  -- rows that are expected; NULL: unknown
    ADD COLUMN host text,                     -- where the driver runs; NULL: it was started by a program of the user
    ADD COLUMN pid integer,
    ADD COLUMN seen_at timestamptz;           -- the last sign of life of the driver

CREATE INDEX pipeline_write_name ON pipeline_write (name, began_at);

-- Rows that the present attempt of a task has read, refused ones included: how far it is, and no count of jobs.
ALTER TABLE pipeline_write_part ADD COLUMN handled bigint NOT NULL DEFAULT 0;

-- How many jobs of a lane and priority a run may still insert, by the last count of its backlog. Deleted with the end of the run.
CREATE TABLE pipeline_brake (
    run_id           text NOT NULL,
    lane             text NOT NULL,
    priority         smallint NOT NULL,
    room             bigint NOT NULL,
    backlog          bigint NOT NULL,
    held_back        boolean NOT NULL,
    measured_at      timestamptz NOT NULL,
    PRIMARY KEY (run_id, lane, priority)
);

-- Whether the driver of a run lives: its session holds the lock that report_driver has taken. The lock of a machine that has
-- vanished stays until TCP notices, so that its last sign of life counts, too.
CREATE FUNCTION driver_lives(run_id text, seen_at timestamptz) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT seen_at > clock_timestamp() - interval '1 minute' AND EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND objid = 0
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid = (hashtext('jobmaster driver ' || current_schema() || ' ' || run_id)::bigint & 4294967295)::oid
    )
$$;
