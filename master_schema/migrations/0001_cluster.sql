-- 0001 cluster: who is there (agents, stores, buckets), who leads, and what happened to ownership.
-- Everything lives in one PostgreSQL schema per cluster (search_path is set by the migrator), so clusters that share a
-- server never see each other. Only the database's clock is used. No foreign keys onto job.

CREATE TABLE cluster (
    one_row     boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    name        text NOT NULL,
    -- Random per creation; every agent store remembers it, so a store that serves another master is noticed.
    uid         uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TYPE agent_state AS ENUM ('ACTIVE', 'STOPPING', 'DEAD', 'RETIRED');

CREATE TABLE agent (
    id             uuid PRIMARY KEY,
    name           text NOT NULL,
    host           text NOT NULL,
    pid            integer NOT NULL,
    version        text NOT NULL,
    mode           text NOT NULL,
    store          text NOT NULL,
    weight         integer NOT NULL,
    state          agent_state NOT NULL DEFAULT 'ACTIVE',
    lease_until    timestamptz NOT NULL,
    lease_seconds  double precision NOT NULL,      -- what this agent promised; judges use it, not their own setting
    -- Since when the lease has been held without a gap: who judges others must have held its own for a full term, so that
    -- after an outage of the master everybody renews before anybody is judged.
    held_since     timestamptz NOT NULL DEFAULT clock_timestamp(),
    beats          bigint NOT NULL DEFAULT 0,
    drain_requested boolean NOT NULL DEFAULT false, -- operator's "agent drain": read with each renewal
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at       timestamptz,
    ended_reason   text,
    lanes          text[] NOT NULL DEFAULT '{}',
    handlers       text[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);                           -- renewals stay HOT: no index but the key, room in the page

CREATE TABLE agent_store (
    name           text PRIMARY KEY,
    generation     uuid NOT NULL,                   -- the same value lies in the store; a store that comes back empty has none
    state          text NOT NULL DEFAULT 'READY',
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TYPE bucket_state AS ENUM ('ACTIVE', 'COMPLETING', 'LOST', 'DRAINING', 'READY_TO_DELETE', 'FROZEN');

CREATE TABLE bucket (
    id             uuid PRIMARY KEY,
    store          text NOT NULL,
    lane           text NOT NULL,
    priority       smallint NOT NULL CHECK (priority BETWEEN 1 AND 5),
    state          bucket_state NOT NULL DEFAULT 'ACTIVE',
    epoch          bigint NOT NULL DEFAULT 1,
    owner          uuid NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

CREATE INDEX bucket_owner ON bucket (owner);

-- One line per transition of a bucket, never updated: what an operator reads after a bad night.
CREATE TABLE bucket_event (
    seq            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    bucket_id      uuid NOT NULL,
    from_state     bucket_state,
    to_state       bucket_state NOT NULL,
    epoch          bigint NOT NULL,
    actor          uuid,
    reason         text NOT NULL,
    jobs_moved     bigint,
    jobs_rescued   bigint
);

CREATE INDEX bucket_event_bucket ON bucket_event (bucket_id, seq);

-- Named locks with an expiry and a fencing number. The coordinator is the one called 'coordinator'.
CREATE TABLE lease (
    name           text PRIMARY KEY,
    owner          uuid,
    weight         integer NOT NULL DEFAULT 0,
    epoch          bigint NOT NULL DEFAULT 0,
    expires_at     timestamptz NOT NULL
);

-- What agents can run: a producer without the handler's code validates against this.
CREATE TABLE handler (
    name           text PRIMARY KEY,
    spec           jsonb NOT NULL,
    digest         text NOT NULL,
    published_by   uuid NOT NULL,
    published_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Every act of an operator (cancel, retry, drain, freeze ...), append only.
CREATE TABLE operator_log (
    seq            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor          text NOT NULL,
    action         text NOT NULL,
    subject        text NOT NULL,
    detail         jsonb NOT NULL DEFAULT '{}'
);
