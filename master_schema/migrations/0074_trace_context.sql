-- 0074 trace context: a submit in SQL may name the trace that it is a part of.

-- The options of submit. (A later migration that adds one replaces this function, and those that submit calls.)
CREATE OR REPLACE FUNCTION submit_options() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY['at', 'after', 'priority', 'lane', 'tags', 'metadata', 'timeout', 'accept_time', 'complete_time', 'cancel_slow',
                 'max_attempts', 'delivery', 'wait_for', 'expires', 'ordering_key', 'traceparent', 'tracestate', 'tenant',
                 'idempotency_key', 'unique', 'job_id', 'allow_unregistered', 'on_unserved', 'notify', 'checked']
$$;

-- The headers of a job with its trace context: the last fields before the tenant.
CREATE FUNCTION submit_traced(headers bytea, options jsonb, due_us bigint) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
DECLARE
    parent text := options ->> 'traceparent';
    state  text := options ->> 'tracestate';
BEGIN
    IF parent IS NULL AND state IS NULL THEN
        RETURN headers;
    ELSIF jsonb_typeof(options -> 'traceparent') IS DISTINCT FROM 'string'
          OR parent !~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' OR parent ~ '^00-0{32}' OR parent ~ '-0{16}-' THEN
        PERFORM submit_refuse(format('''traceparent'' is no W3C trace context: %s', left(coalesce(options -> 'traceparent', 'null')::text, 100)),
                              'such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01');
    ELSIF state IS NOT NULL AND (jsonb_typeof(options -> 'tracestate') <> 'string' OR length(state) > 512 OR state !~ '^[ !#-[\]-~]*$') THEN
        PERFORM submit_refuse('''tracestate'' must be at most 512 printable ASCII characters without quotes and backslashes, not '
                              || left((options -> 'tracestate')::text, 100));
    END IF;
    RETURN CASE WHEN headers = ''::bytea THEN '{'::bytea
                ELSE substring(headers FROM 1 FOR octet_length(headers) - 1) || ','::bytea END
           || convert_to(concat_ws(',', '"traceparent":"' || parent || '"', '"tracestate":"' || nullif(state, '') || '"',
                                   CASE WHEN due_us > 0 THEN '"trace_linked":true' END) || '}', 'UTF8');
END
$$;

-- The headers without their trace context. It does not belong to what a workflow is: sent again, it may be in another span.
CREATE FUNCTION untraced(headers bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(convert_from(headers, 'UTF8'),
                          ',"traceparent":"[^"]*"(,"tracestate":"[^"]*")?(,"trace_linked":true)?', '')
$$;

-- As in 0044, and a workflow that is sent again in another span is the same one.
CREATE OR REPLACE FUNCTION workflow_start(
    of uuid, title text, undoes boolean, args_bytes bigint, numbers integer[], names text[], runs_on text[], parents text[],
    choices text[], handlers text[], priorities smallint[], lanes text[], args bytea[], refs text[], headers bytea[],
    delays_us bigint[], kept boolean[]
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO workflow (id, name, undoes, args_bytes) VALUES (of, title, undoes, args_bytes) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN CASE WHEN (SELECT w.name = title FROM workflow w WHERE w.id = of)
                     AND (SELECT count(*) = cardinality(numbers) FROM workflow_step s WHERE s.workflow = of)
                     AND NOT EXISTS (
                         SELECT n.number, n.runs_on, n.parents, n.handler, n.args, untraced(n.headers), n.delay_us
                         FROM unnest(numbers, runs_on, parents::text[], handlers, args, headers, delays_us)
                              AS n (number, runs_on, parents, handler, args, headers, delay_us)
                         EXCEPT
                         SELECT s.step, s.runs_on, s.parents::text, s.handler, s.args, untraced(s.headers), s.delay_us
                         FROM workflow_step s WHERE s.workflow = of)
               THEN false END;
    END IF;
    INSERT INTO workflow_step (workflow, step, name, runs_on, parents, choice, handler, priority, lane, args, refs, headers, delay_us, kept)
    SELECT of, n.step, n.name, n.runs_on, n.parents::integer[], n.choice::jsonb, n.handler, n.priority, n.lane, n.args, n.refs::jsonb,
           n.headers, n.delay_us, n.kept
    FROM unnest(numbers, names, runs_on, parents, choices, handlers, priorities, lanes, args, refs, headers, delays_us, kept)
         AS n (step, name, runs_on, parents, choice, handler, priority, lane, args, refs, headers, delay_us, kept);
    PERFORM workflow_advance(of);
    RETURN true;
END
$$;

-- As in 0057, with traceparent and tracestate.
CREATE OR REPLACE FUNCTION submit(handler text, args jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET extra_float_digits = 1 AS $$
DECLARE
    valid    constant text[] := submit_options();
    given    jsonb := coalesce(args, '{}');
    opts     jsonb := coalesce(options, '{}');
    wanted   text := submit_name(to_jsonb(handler), 'the handler''s name', 200);
    now_us   bigint := to_us(clock_timestamp());
    rules    submit_rule;
    declared jsonb;
    data     bytea;
    meta     bytea;
    terms    jsonb;
    due_us   bigint;
    level    smallint;
    group_of text;
    own      uuid;
    holder   uuid;
    notified boolean;
    wrong    text;
BEGIN
    IF jsonb_typeof(given) <> 'object' THEN
        PERFORM submit_refuse('the arguments must be an object of names and values, not ' || jsonb_typeof(given),
                              'submit(''images.resize'', ''{"path": "a.png"}'')');
    ELSIF jsonb_typeof(opts) <> 'object' THEN
        PERFORM submit_refuse('the options must be an object, not ' || jsonb_typeof(opts), '{"priority": "high", "after": 60}');
    END IF;
    SELECT each INTO wrong FROM jsonb_object_keys(opts) AS each WHERE each <> ALL (valid) ORDER BY each LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('submit has no option ''%s''', left(wrong, 80)),
                              submit_mean(wrong, valid) || 'valid are ' || array_to_string(valid, ', '));
    ELSIF coalesce(opts ->> 'on_unserved', 'hold') NOT IN ('hold', 'raise') THEN
        PERFORM submit_refuse(format('''on_unserved'' must be ''hold'' or ''raise'', not %s', left(opts ->> 'on_unserved', 80)));
    END IF;
    notified := submit_flag(opts, 'notify', true);
    SELECT * INTO STRICT rules FROM submit_rule;
    declared := submit_declared(wanted, given, opts);
    opts := submit_ordered(opts, wanted, declared, given);
    data := convert_to(submit_json(given), 'UTF8');
    IF octet_length(data) > rules.args_bytes THEN
        PERFORM submit_refuse(format('the arguments of handler ''%s'' have %s bytes, the limit is %s', wanted, octet_length(data),
                                     rules.args_bytes),
                              'send a reference to large data, or raise limits.args');
    END IF;
    due_us := submit_due(opts, rules, now_us);
    meta := submit_headers(opts, rules, now_us, due_us);
    meta := submit_traced(submit_in_order(meta, opts, rules), opts, due_us);
    meta := submit_required(wanted, opts, submit_of_tenant(meta, opts, rules));
    level := coalesce(submit_priority(coalesce(nullif(opts -> 'priority', 'null'), nullif(declared -> 'priority', 'null'))), rules.priority);
    own := submit_id(opts -> 'job_id', rules, now_us);
    group_of := submit_lane(nullif(opts -> 'lane', 'null'), coalesce(declared ->> 'lane', rules.lane), rules);
    IF opts ->> 'on_unserved' = 'raise' AND NOT EXISTS (
        SELECT FROM bucket AS b JOIN agent AS a ON a.id = b.owner
        WHERE b.state = 'ACTIVE' AND b.lane = group_of AND b.priority = level AND wanted = ANY (a.handlers)
    ) THEN
        PERFORM submit_refuse(format('no bucket serves %s/%s for the handler ''%s''', group_of, level, wanted),
                              'configure buckets for it on some agent, or leave out ''on_unserved'' and let the job wait', '55000');
    END IF;
    terms := submit_terms(opts, declared, given, due_us, now_us);
    IF terms IS NOT NULL THEN
        RETURN submit_holding(wanted, terms, own, level, group_of, data, meta, due_us, notified);
    END IF;
    holder := own;
    IF opts ->> 'idempotency_key' IS NOT NULL THEN
        holder := submit_reserve(wanted, opts ->> 'idempotency_key', own, sha256(convert_to(wanted, 'UTF8') || '\x00'::bytea || data));
    END IF;
    IF holder <> own THEN
        IF EXISTS (SELECT FROM job AS j WHERE j.id = holder)
           OR NOT submit_hold_reserved(holder, level, group_of, wanted, due_us, data, meta, notified) THEN
            RETURN holder;
        END IF;
    ELSIF NOT submit_hold(own, level, group_of, wanted, due_us, data, meta, notified) THEN
        PERFORM submit_compare(own, wanted, data);
        RETURN own;
    END IF;
    RETURN holder;
END
$$;

COMMENT ON FUNCTION submit(text, jsonb, jsonb) IS
    'Submits one job in the caller''s transaction; returns its id. Options: at, after, priority, lane, tags, metadata, timeout, '
    'accept_time, complete_time, cancel_slow, max_attempts, delivery, wait_for, expires, ordering_key, traceparent, tracestate, '
    'tenant, idempotency_key, job_id, unique, allow_unregistered, on_unserved, notify, checked.';

-- Temporary tables of the session come last (see 0017). What replaces a function has only the settings that it names itself.
DO $$
DECLARE
    each text;
BEGIN
    FOR each IN SELECT p.oid::regprocedure::text FROM pg_proc p
                WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN ('submit', 'workflow_start') LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', each, current_schema());
    END LOOP;
END
$$;
