-- 0061 retention run: the last look of the leader for ranges that are older than the lifetime of jobs.
-- programs: >= 0060

CREATE TABLE retention_run (
    only_one      boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    agent_id      uuid NOT NULL,
    looked_at     timestamptz NOT NULL,
    after_seconds double precision NOT NULL,
    discards      boolean NOT NULL,
    blocked       text                                -- why the next range could not leave; NULL: nothing older is left
);
