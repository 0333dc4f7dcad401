-- 0059 job filters: which jobs a list, a count or a bulk operation means, and what kind of failure an error is.
-- programs: >= 0058

-- The JSON of headers or of an error, without U+0000 in its texts, which json_object_field refuses.
CREATE FUNCTION stored_json(data bytea) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN position('\\u0000'::bytea IN data) > 0
                THEN regexp_replace(convert_from(data, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')
                ELSE convert_from(data, 'UTF8') END::json
$$;

-- What the messages of one kind of failure have in common: the first line, with # in the place of ids and numbers.
CREATE FUNCTION error_line(message text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(left(split_part(message, E'\n', 1), 200),
        '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\m(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{7,}\M|[0-9]+', '#', 'g')
$$;

-- Fingerprint of a failure: of its handler, the type of its error, and that line.
CREATE FUNCTION error_fingerprint(handler text, error bytea) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT left(encode(sha256(convert_to(
        handler || E'\n' || (stored_json(error) ->> 'type') || E'\n' || error_line(stored_json(error) ->> 'message'), 'UTF8')), 'hex'), 12)
$$;

-- Which jobs are meant; a field that is NULL admits every job. Its fields are those of the JSON of a JobFilter of the programs, and
-- what is made of them.
CREATE TYPE job_filter AS (
    states           job_state[],
    handler          text,
    lane             text,
    priority         smallint,
    tag              text,
    metadata         jsonb,                         -- name to text: all of them
    tenant           text,
    schedule         text,
    workflow         uuid,
    error_type       text,                          -- also without its module
    error_group      text,                          -- fingerprint
    due_after        timestamptz,                   -- HELD alone
    due_before       timestamptz,
    lowest           uuid,                          -- included
    highest          uuid,                          -- not included
    ranges           uuid[]                         -- lowest ids of the ranges of a batch
);

-- The filter of a JSON.
CREATE FUNCTION job_filter_of(data jsonb) RETURNS job_filter LANGUAGE sql STABLE AS $$
    SELECT jsonb_populate_record(NULL::job_filter, data || jsonb_strip_nulls(jsonb_build_object(
        'due_after', from_us((data ->> 'due_after_us')::bigint),
        'due_before', from_us((data ->> 'due_before_us')::bigint),
        'lowest', uuid_floor(from_us((data ->> 'since_us')::bigint)),
        'highest', uuid_floor(from_us((data ->> 'until_us')::bigint)),
        'ranges', CASE WHEN data ? 'batch' THEN (
            SELECT coalesce(jsonb_agg(r.lo), '[]') FROM batch_range r
            WHERE r.batch = (SELECT named.batch FROM batch_range named WHERE named.lo = batch_range_of((data ->> 'batch')::uuid))
        ) END
    )))
$$;

-- Whether a job is meant. The one place that decides: lists, counts and bulk operations call it, and the planner takes its body
-- into their statements.
CREATE FUNCTION job_matches(
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
       AND (f.tenant IS NULL OR position(convert_to('"tenant":["' || f.tenant || '"]', 'UTF8') IN headers) > 0)
       AND (f.tag IS NULL OR (
            position('"tags"'::bytea IN headers) > 0 AND (stored_json(headers) -> 'tags')::jsonb ? f.tag))
       AND (f.metadata IS NULL OR (
            position('"metadata"'::bytea IN headers) > 0 AND (stored_json(headers) -> 'metadata')::jsonb @> f.metadata))
       AND (f.schedule IS NULL OR (
            position('"schedule"'::bytea IN headers) > 0 AND stored_json(headers) ->> 'schedule' = f.schedule))
       AND (f.workflow IS NULL OR (position('"workflow"'::bytea IN headers) > 0 AND workflow_of(headers) = f.workflow))
       AND (f.error_type IS NULL OR (
            position(convert_to(f.error_type, 'UTF8') IN error) > 0
            AND f.error_type IN (stored_json(error) ->> 'type', regexp_replace(stored_json(error) ->> 'type', '^.*\.', ''))))
       AND (f.error_group IS NULL OR (error IS NOT NULL AND error_fingerprint(handler, error) = f.error_group))
$$;
