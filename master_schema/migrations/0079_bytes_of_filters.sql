-- 0079 bytes of filters: a search compares bytes before it parses the JSON of a row, and makes them once a statement.

ALTER TYPE job_filter
    ADD ATTRIBUTE tag_bytes      bytea,             -- the headers of a job that fits have them; NULL: not known
    ADD ATTRIBUTE metadata_bytes bytea,             -- of one value; NULL: not known
    ADD ATTRIBUTE tenant_bytes   bytea,
    ADD ATTRIBUTE error_bytes    bytea;

-- A text as each program writes it into JSON, in its quotes. NULL for one that could be escaped, or that has a character which some
-- program escapes.
CREATE FUNCTION text_bytes(value text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN value ~ '^[ !#-.0-;=?-[\]-~]*$' THEN convert_to('"' || value || '"', 'UTF8') END
$$;

-- As in 0059, with the bytes.
CREATE OR REPLACE FUNCTION job_filter_of(data jsonb) RETURNS job_filter LANGUAGE sql STABLE AS $$
    SELECT jsonb_populate_record(NULL::job_filter, data || jsonb_strip_nulls(jsonb_build_object(
        'due_after', from_us((data ->> 'due_after_us')::bigint),
        'due_before', from_us((data ->> 'due_before_us')::bigint),
        'lowest', uuid_floor(from_us((data ->> 'since_us')::bigint)),
        'highest', uuid_floor(from_us((data ->> 'until_us')::bigint)),
        'tag_bytes', text_bytes(data ->> 'tag'),
        'metadata_bytes', (
            SELECT text_bytes(named.value) FROM jsonb_each_text(CASE WHEN jsonb_typeof(data -> 'metadata') = 'object' THEN data -> 'metadata' END) AS named
            ORDER BY length(named.value) DESC LIMIT 1),
        'tenant_bytes', convert_to('"tenant":["' || (data ->> 'tenant') || '"]', 'UTF8'),
        'error_bytes', convert_to(data ->> 'error_type', 'UTF8'),
        'ranges', CASE WHEN data ? 'batch' THEN (
            SELECT coalesce(jsonb_agg(r.lo), '[]') FROM batch_range r
            WHERE r.batch = (SELECT named.batch FROM batch_range named WHERE named.lo = batch_range_of((data ->> 'batch')::uuid))
        ) END
    )))
$$;

-- As in 0059; bytes are compared before JSON is parsed.
CREATE OR REPLACE FUNCTION job_matches(
    f job_filter, id uuid, state job_state, handler text, lane text, priority smallint, due_at timestamptz, headers bytea,
    error bytea
) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (f.states IS NULL OR state = ANY (f.states))
       AND (f.handler IS NULL OR handler = f.handler)
       AND (f.lane IS NULL OR lane = f.lane)
       AND (f.priority IS NULL OR priority = f.priority)
       AND (f.lowest IS NULL OR id >= f.lowest)
       AND (f.highest IS NULL OR id < f.highest)
       AND (f.due_after IS NULL OR (state = 'HELD' AND due_at >= f.due_after))
       AND (f.due_before IS NULL OR (state = 'HELD' AND due_at < f.due_before))
       AND (f.ranges IS NULL OR batch_range_of(id) = ANY (f.ranges))
       AND (f.tenant IS NULL OR position(f.tenant_bytes IN headers) > 0)
       AND (f.tag IS NULL OR (
            position('"tags"'::bytea IN headers) > 0 AND (f.tag_bytes IS NULL OR position(f.tag_bytes IN headers) > 0)
            AND (stored_json(headers) -> 'tags')::jsonb ? f.tag))
       AND (f.metadata IS NULL OR (
            position('"metadata"'::bytea IN headers) > 0
            AND (f.metadata_bytes IS NULL OR position(f.metadata_bytes IN headers) > 0)
            AND (stored_json(headers) -> 'metadata')::jsonb @> f.metadata))
       AND (f.schedule IS NULL OR (
            position('"schedule"'::bytea IN headers) > 0 AND stored_json(headers) ->> 'schedule' = f.schedule))
       AND (f.workflow IS NULL OR (position('"workflow"'::bytea IN headers) > 0 AND workflow_of(headers) = f.workflow))
       AND (f.error_type IS NULL OR (
            position(f.error_bytes IN error) > 0
            AND f.error_type IN (stored_json(error) ->> 'type', regexp_replace(stored_json(error) ->> 'type', '^.*\.', ''))))
       AND (f.error_group IS NULL OR (error IS NOT NULL AND error_fingerprint(handler, error) = f.error_group))
$$;
