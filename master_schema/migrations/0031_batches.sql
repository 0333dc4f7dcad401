-- 0031 batches: groups of jobs in ranges of ids of their own, and the jobs that follow when all of them have ended.
-- programs: >= 0019

-- The jobs of a batch are a range of job_pkey: the same 12 first bytes, and an index in the last 4. So being in a batch costs a
-- job no column and no index, and what has become of a batch is a count over its ranges. Nothing is counted up.
CREATE TABLE batch (
    id               uuid PRIMARY KEY,              -- the lowest id of its first range; no job has it
    parent           uuid,                          -- the batch that this one is nested in
    retry_of         uuid,                          -- the batch whose failed jobs this one runs again
    name             text NOT NULL,
    description      text NOT NULL DEFAULT '',
    state            text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'CLOSED', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
    size             bigint NOT NULL DEFAULT 0,     -- its jobs; known from CLOSED on
    nested_changes   bigint NOT NULL DEFAULT 0,     -- grows when a batch is opened inside it
    reason           text NOT NULL DEFAULT '',      -- why it has ended before all of its jobs
    cancel_requested boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at        timestamptz,
    ended_at         timestamptz,
    expires_at       timestamptz,                   -- when it ends, whatever its jobs do; NULL: never
    silent_after     timestamptz,                   -- when an OPEN batch counts as abandoned; its producer moves it on
    look_at          timestamptz,                   -- when the leader looks at it; NULL: it has ended
    succeeded        bigint,                        -- counted when it ended, as the columns below
    failed           bigint,
    cancelled        bigint,
    expired          bigint,
    unfinished       bigint,
    missing          bigint,
    CONSTRAINT batch_rests CHECK ((look_at IS NULL) = (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))),
    CONSTRAINT batch_is_counted CHECK ((ended_at IS NOT NULL) = (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')))
);

CREATE INDEX batch_look ON batch (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX batch_parent ON batch (parent) WHERE parent IS NOT NULL;
CREATE INDEX batch_ended ON batch (ended_at) WHERE ended_at IS NOT NULL;

-- A store refuses ids whose time is too far from its clock, so a batch that is submitted for long has several ranges.
CREATE TABLE batch_range (
    lo               uuid PRIMARY KEY,
    batch            uuid NOT NULL
);

CREATE INDEX batch_range_batch ON batch_range (batch);

-- How many jobs of a range each agent has ended. It only shows when a count is worth while: the count decides.
CREATE TABLE batch_tally (
    lo               uuid NOT NULL,
    agent_id         uuid NOT NULL,
    ended            bigint NOT NULL,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lo, agent_id)
) WITH (fillfactor = 50);

CREATE TABLE batch_callback (
    batch            uuid NOT NULL,
    occasion         text NOT NULL CHECK (occasion IN ('complete', 'success', 'failure')),
    job_id           uuid,                          -- once it was fired
    priority         smallint NOT NULL,
    lane             text NOT NULL,
    handler          text NOT NULL,
    args             bytea NOT NULL,                -- JSON object
    headers          bytea NOT NULL,                -- JSON object or empty
    PRIMARY KEY (batch, occasion)
);

-- Highest id of a range, from its lowest.
CREATE FUNCTION batch_range_end(lo uuid) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (left(lo::text, 28) || 'ffffffff')::uuid
$$;

CREATE VIEW batches AS
SELECT id,
       name,
       description,
       state,
       size,
       reason,
       cancel_requested,
       parent,
       retry_of,
       created_at,
       closed_at,
       ended_at,
       expires_at,
       succeeded,
       failed,
       cancelled,
       expired,
       unfinished,
       missing
FROM batch;
