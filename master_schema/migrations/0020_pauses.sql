-- 0020 pauses: what operators have paused, and how far each agent has followed.
-- programs: >= 0019

-- A pause holds until its line is deleted or its time is over. No line says anything about a bucket or an agent, so it holds
-- for those that come later, and no rescue and no restart ends it.
CREATE TABLE pause (
    kind           text NOT NULL CHECK (kind IN ('handler', 'lane', 'priority', 'tag')),
    value          text NOT NULL,
    until          timestamptz,                     -- NULL: until it is ended
    actor          text NOT NULL,
    reason         text NOT NULL,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, value)
);

-- Grows with every change of the lines above; each change locks it first. It is a time, in microseconds since 1970, so that a
-- failover that forgets a change never gives its version to another one.
CREATE TABLE pause_version (
    one_row        boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    version        bigint NOT NULL DEFAULT 0
);
INSERT INTO pause_version DEFAULT VALUES;

-- The version of the pauses that the agent obeys; NULL: it has read none yet, or its program knows no pauses.
ALTER TABLE agent ADD COLUMN pauses_obeyed bigint;

-- Whether a job has one of some tags. Its headers are JSON that may hold \u0000, which jsonb refuses; no tag holds it, so it is
-- taken out. Headers that cannot be read have no tags: one such row must not stop the other jobs of its lane.
CREATE FUNCTION has_tag(headers bytea, tags text[]) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF position('"tags"'::bytea IN headers) = 0 THEN
        RETURN false;
    END IF;
    BEGIN
        RETURN coalesce((regexp_replace(convert_from(headers, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json
                         -> 'tags')::jsonb ?| tags, false);
    EXCEPTION WHEN data_exception THEN
        RETURN false;
    END;
END
$$;
