-- 0014 placement: what share of the jobs an agent takes, which lanes it helps out in, and who was asked to.
-- A bucket that serves jobs nobody is configured for belongs to an agent like every other; only the wish for it is new.

ALTER TABLE agent
    ADD COLUMN share double precision NOT NULL DEFAULT 1,
    ADD COLUMN helps text[] NOT NULL DEFAULT '{}';

CREATE TABLE bucket_request (
    lane           text NOT NULL,
    priority       smallint NOT NULL,
    handler        text NOT NULL,                   -- of the jobs that nobody served
    agent_id       uuid NOT NULL,                   -- who is to open a bucket for them
    asked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, priority, handler)
);
