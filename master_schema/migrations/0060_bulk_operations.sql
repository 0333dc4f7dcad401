-- 0060 bulk operations: one change of every job that fits a filter, page by page.
-- programs: >= 0058

CREATE TYPE bulk_state AS ENUM ('WAITING', 'RUNNING', 'DONE', 'CANCELLED', 'FAILED');

-- The filter is stored as it was given, with its range of ids. A page moves the cursor in the statement that changes the jobs.
CREATE TABLE bulk_operation (
    id               uuid PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('retry', 'cancel', 'reschedule', 'delete')),
    state            bulk_state NOT NULL DEFAULT 'WAITING',
    filter           jsonb NOT NULL,
    change           jsonb NOT NULL DEFAULT '{}',   -- reschedule: due_us, priority, lane
    lowest           uuid NOT NULL,                 -- ids that are looked at
    highest          uuid NOT NULL,
    cursor           uuid,                          -- the last id that was looked at
    actor            text NOT NULL,
    reason           text NOT NULL DEFAULT '',
    changed          bigint NOT NULL DEFAULT 0,     -- jobs that it has changed, or run again
    skipped          jsonb NOT NULL DEFAULT '{}',   -- jobs that fit and were left alone, by the cause
    unsearched       integer NOT NULL DEFAULT 0,    -- buckets at its start; jobs that only they have are not found
    error            text NOT NULL DEFAULT '',      -- why it FAILED
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    moved_at         timestamptz,                   -- the last page
    ended_at         timestamptz
) WITH (fillfactor = 50);                           -- the row of a page is rewritten in its place

-- Read by the leader's statement of each second.
CREATE INDEX bulk_unended ON bulk_operation (id) WHERE state IN ('WAITING', 'RUNNING');

-- Numbers by cause, added to others.
CREATE FUNCTION bulk_sum(counts jsonb, more jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(jsonb_object_agg(each.key, each.number), '{}')
    FROM (
        SELECT key, sum(value::bigint) AS number
        FROM (SELECT * FROM jsonb_each_text(counts) UNION ALL SELECT * FROM jsonb_each_text(more)) AS every
        GROUP BY key HAVING sum(value::bigint) > 0
    ) AS each
$$;

-- The headers of a job whose contents a bulk operation has deleted; see the page of bulk operations.
CREATE FUNCTION deleted_headers() RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '\x7b2264656c65746564223a747275657d'::bytea
$$;
