-- 0002 jobs: one row per job, one row per attempt that did not conclude its job, and what keeps both unique.

CREATE TYPE job_state AS ENUM
    ('HELD', 'ASSIGNED', 'PROCESSING', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED', 'WAITING');

-- RANGE-partitioned by id: a UUIDv7 is ordered by creation time, so the key is globally unique *and* cuts time.
-- No DEFAULT partition: it forbids DETACH CONCURRENTLY, and one row in it blocks creating that range for ever.
-- A terminal row touches the primary key only (all other indexes are partial), so outcomes can be COPYed in.
CREATE TABLE job (
    id               uuid NOT NULL,
    state            job_state NOT NULL,
    priority         smallint NOT NULL,
    lane             text NOT NULL,
    handler          text NOT NULL,
    token            integer NOT NULL,              -- +1 at every assignment; a row never had 0
    bucket_id        uuid,                          -- with bucket_epoch and token: the identity of the last assignment
    bucket_epoch     bigint,
    attempt          integer NOT NULL DEFAULT 0,    -- attempts used up
    rescues          integer NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    due_at           timestamptz,                   -- NULL = at once (never NULL while HELD)
    expires_at       timestamptz,                   -- of a HELD row only: when it must not start any more
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- of a final row: when it ended
    waited_us        bigint,
    ran_us           bigint,
    args             bytea NOT NULL,                -- JSON object; views show it as json
    headers          bytea NOT NULL DEFAULT '',     -- JSON object or empty
    result           bytea,                         -- JSON
    error            bytea,                         -- JSON: type, message, reason, traceback
    PRIMARY KEY (id),
    CONSTRAINT job_held_is_nowhere CHECK (state <> 'HELD' OR (bucket_id IS NULL AND bucket_epoch IS NULL AND due_at IS NOT NULL)),
    CONSTRAINT job_assigned_is_somewhere
        CHECK (state NOT IN ('ASSIGNED', 'PROCESSING') OR (bucket_id IS NOT NULL AND bucket_epoch IS NOT NULL)),
    CONSTRAINT job_token_starts_at_one CHECK (token >= 1)
) PARTITION BY RANGE (id);

CREATE INDEX job_due ON job (lane, priority, due_at) WHERE state = 'HELD';
CREATE INDEX job_in_flight ON job (bucket_id) WHERE state IN ('ASSIGNED', 'PROCESSING');
-- Read with every heartbeat, so it holds nothing but what a heartbeat must carry.
CREATE INDEX job_cancel ON job (bucket_id) WHERE cancel_requested AND state IN ('ASSIGNED', 'PROCESSING');
CREATE INDEX job_expiring ON job (expires_at) WHERE state = 'HELD' AND expires_at IS NOT NULL;

-- One row per attempt that did not conclude its job; insert-or-ignore. A refused stale write marks its line.
CREATE TABLE attempt (
    job_id           uuid NOT NULL,
    token            integer NOT NULL,
    bucket_id        uuid NOT NULL,
    bucket_epoch     bigint NOT NULL,
    outcome          text NOT NULL,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    ran_us           bigint,
    error            bytea,
    refused_at       timestamptz,
    refused_count    integer NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, token, bucket_id, bucket_epoch)
) PARTITION BY RANGE (job_id);

-- The archive's lower bound: ids below it are gone for good and are refused, so a late copy of a dropped job never runs again.
CREATE TABLE watermark (
    one_row          boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    floor            uuid NOT NULL,
    span             text NOT NULL DEFAULT 'day' CHECK (span IN ('day', 'week', 'month')),  -- of the partitions made last
    moved_at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Entries that were refused because of their id (below the watermark, or outside every partition): looked at by a person.
CREATE TABLE quarantine (
    seq              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id           uuid NOT NULL,
    bucket_id        uuid,
    reason           text NOT NULL,
    entry            bytea NOT NULL,
    UNIQUE (job_id, reason)                         -- a batch that is sent again adds nothing
);

-- Idempotency keys: scope is the handler's name. The digest tells "again" from "conflict".
CREATE TABLE idempotency (
    scope            text NOT NULL,
    key              text NOT NULL,
    job_id           uuid NOT NULL,
    digest           bytea NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key)
);

-- Smallest UUIDv7 of a moment: the bound of a partition.
CREATE FUNCTION uuid_floor(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Moment of a UUIDv7 (millisecond precision).
CREATE FUNCTION uuid_moment(id uuid) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT timestamptz 'epoch'
         + ('x' || lpad(replace(left(id::text, 13), '-', ''), 16, '0'))::bit(64)::bigint * interval '1 millisecond'
$$;

-- Microseconds since 1970 <-> moment, both exact.
CREATE FUNCTION from_us(us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT timestamptz 'epoch' + us * interval '1 microsecond'
$$;

CREATE FUNCTION to_us(moment timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM moment) * 1000000)::bigint
$$;

-- When a job must not start any more, from its headers. Nearly all headers lack the word, and the search costs nothing. Not
-- through json, which refuses the \u0000 that tags may hold; all other numbers in headers have other names, and inside a
-- string the quotes would be escaped.
CREATE FUNCTION expires_of(headers bytea) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN position('"expires_us":'::bytea IN headers) > 0
                THEN timestamptz 'epoch' + substring(encode(headers, 'escape') FROM '"expires_us":([0-9]{1,18})')::bigint
                     * interval '1 microsecond' END
$$;
