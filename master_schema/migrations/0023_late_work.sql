-- 0023 late work: jobs that run longer than their complete_time are found by the time at which they are given to another agent.

-- expires_at of a PROCESSING row: when the job is given to another agent. Jobs without a complete_time have none, and no entry here.
CREATE INDEX job_late ON job (expires_at) WHERE state = 'PROCESSING' AND expires_at IS NOT NULL;

-- ------------------------------------------------------------ the options of a submit in SQL

-- Microseconds of a limit; 0 = none, NULL = not given.
CREATE FUNCTION submit_limit(options jsonb, name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    number bigint;
BEGIN
    IF options ->> name IS NOT NULL THEN
        number := submit_span(options -> name, name);
        IF number < 0 THEN
            PERFORM submit_refuse(format('''%s'' must be more than 0 seconds, not %s', name, options -> name));
        END IF;
    END IF;
    RETURN number;
END
$$;

-- As in 0019, with accept_time, complete_time and cancel_slow.
CREATE OR REPLACE FUNCTION submit_headers(options jsonb, rules submit_rule, now_us bigint, due_us bigint) RETURNS bytea
LANGUAGE plpgsql STABLE AS $$
DECLARE
    parts   text[] := '{}';
    item    jsonb;
    number  bigint;
    text_of text;
BEGIN
    IF options ->> 'tags' IS NOT NULL THEN
        item := options -> 'tags';
        IF jsonb_typeof(item) <> 'array' THEN
            PERFORM submit_refuse(format('''tags'' must be a list of texts, not %s', left(item::text, 80)));
        ELSIF jsonb_array_length(item) > rules.tags THEN
            PERFORM submit_refuse(format('a job may have %s tags, %s are given', rules.tags, jsonb_array_length(item)));
        END IF;
        PERFORM submit_name(tag, 'tag ' || left(tag::text, 80), rules.tag_chars) FROM jsonb_array_elements(item) AS each (tag);
        IF item <> '[]' THEN
            parts := array_append(parts, '"tags":' || submit_json(item));
        END IF;
    END IF;
    IF options ->> 'metadata' IS NOT NULL THEN
        item := options -> 'metadata';
        IF jsonb_typeof(item) <> 'object' THEN
            PERFORM submit_refuse(format('''metadata'' must be an object of texts, not %s', left(item::text, 80)));
        END IF;
        PERFORM submit_name(to_jsonb(key), 'metadata key ' || left(key, 80), 4096) FROM jsonb_object_keys(item) AS key;
        SELECT key INTO text_of FROM jsonb_each(item) WHERE jsonb_typeof(value) <> 'string' LIMIT 1;
        IF FOUND THEN
            PERFORM submit_refuse(format('metadata ''%s'' must be text, not %s', text_of, jsonb_typeof(item -> text_of)));
        ELSIF item <> '{}' THEN
            parts := array_append(parts, '"metadata":' || submit_json(item));
        END IF;
    END IF;
    IF options ->> 'timeout' IS NOT NULL THEN
        number := submit_span(options -> 'timeout', 'timeout');
        IF number <= 0 THEN
            PERFORM submit_refuse(format('''timeout'' must be more than 0 seconds, not %s', options -> 'timeout'));
        END IF;
        parts := array_append(parts, '"timeout_seconds":' || submit_float(number / 1e6::double precision));
    END IF;
    item := options -> 'max_attempts';
    IF item <> 'null' THEN
        IF jsonb_typeof(item) <> 'number' OR item::text !~ '^[1-9][0-9]{0,8}$' THEN
            PERFORM submit_refuse(format('''max_attempts'' must be a whole number of at least 1, not %s', left(item::text, 80)));
        END IF;
        parts := array_append(parts, '"max_attempts":' || item::text);
    END IF;
    number := submit_limit(options, 'accept_time');
    IF number IS NOT NULL THEN
        parts := array_append(parts, '"accept_seconds":' || submit_float(number / 1e6::double precision));
    END IF;
    number := submit_limit(options, 'complete_time');
    IF number IS NOT NULL THEN
        IF number > 0 AND options ->> 'delivery' IS NOT NULL THEN
            PERFORM submit_refuse('''complete_time'' gives a job that runs to another agent, and a job delivered at most once has one start');
        ELSIF number > 0 AND options ->> 'timeout' IS NOT NULL AND number >= submit_span(options -> 'timeout', 'timeout') THEN
            PERFORM submit_refuse(format('''complete_time'' (%s) must be less than ''timeout'' (%s), which ends the attempt',
                                         options ->> 'complete_time', options ->> 'timeout'));
        END IF;
        parts := array_append(parts, '"complete_seconds":' || submit_float(number / 1e6::double precision));
    END IF;
    IF submit_flag(options, 'cancel_slow', NULL) IS NOT NULL THEN
        parts := array_append(parts, '"cancel_slow":' || (options ->> 'cancel_slow'));
    END IF;
    item := options -> 'expires';
    IF item <> 'null' THEN
        number := CASE WHEN (item #>> '{}') ~ '^\s*[0-9]{4,6}-[0-9]{1,2}-' THEN submit_moment(item, 'expires')
                  ELSE now_us + submit_span(item, 'expires') END;
        IF number <= now_us THEN
            PERFORM submit_refuse('''expires'' is not in the future: the job could never start', 'give a later time');
        ELSIF number <= due_us THEN
            PERFORM submit_refuse('''expires'' is not after the due time: the job could never start',
                                  'give a later ''expires'', or an earlier ''at'' or ''after''');
        END IF;
        parts := array_append(parts, '"expires_us":' || number);
    END IF;
    IF options ->> 'idempotency_key' IS NOT NULL THEN
        text_of := submit_name(options -> 'idempotency_key', 'idempotency_key', 200);
        parts := array_append(parts, '"key":' || to_json(text_of)::text);
    END IF;
    IF options ->> 'delivery' IS NOT NULL THEN
        IF options ->> 'delivery' <> 'at_most_once' THEN
            PERFORM submit_refuse(format('''delivery'' of a submit can only be ''at_most_once'', not %s', options -> 'delivery'),
                                  'leave it out: then the handler''s own holds, and at_least_once without one');
        ELSIF coalesce(options ->> 'max_attempts', '1') <> '1' THEN
            PERFORM submit_refuse(format('a job delivered at most once has one attempt, and ''max_attempts'' is %s', options ->> 'max_attempts'));
        END IF;
        parts := array_append(parts, '"at_most_once":true');
    END IF;
    IF parts = '{}' THEN
        RETURN '';
    END IF;
    text_of := '{' || array_to_string(parts, ',') || '}';
    IF octet_length(convert_to(text_of, 'UTF8')) > rules.headers_bytes THEN
        PERFORM submit_refuse(format('tags, metadata and options have %s bytes together, the limit is %s',
                                     octet_length(convert_to(text_of, 'UTF8')), rules.headers_bytes),
                              'put large data into the arguments or a store of its own');
    END IF;
    RETURN convert_to(text_of, 'UTF8');
END
$$;

-- As in 0019, with the same options.
CREATE OR REPLACE FUNCTION submit(handler text, args jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET extra_float_digits = 1 AS $$
DECLARE
    valid    constant text[] := ARRAY['at', 'after', 'priority', 'lane', 'tags', 'metadata', 'timeout', 'accept_time',
                                      'complete_time', 'cancel_slow', 'max_attempts', 'delivery',
                                      'expires', 'idempotency_key', 'job_id', 'allow_unregistered', 'on_unserved', 'notify', 'checked'];
    given    jsonb := coalesce(args, '{}');
    opts     jsonb := coalesce(options, '{}');
    wanted   text := submit_name(to_jsonb(handler), 'the handler''s name', 200);
    now_us   bigint := to_us(clock_timestamp());
    rules    submit_rule;
    declared jsonb;
    data     bytea;
    meta     bytea;
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
    data := convert_to(submit_json(given), 'UTF8');
    IF octet_length(data) > rules.args_bytes THEN
        PERFORM submit_refuse(format('the arguments of handler ''%s'' have %s bytes, the limit is %s', wanted, octet_length(data),
                                     rules.args_bytes),
                              'send a reference to large data, or raise limits.args');
    END IF;
    due_us := submit_due(opts, rules, now_us);
    meta := submit_headers(opts, rules, now_us, due_us);
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
    holder := own;
    IF opts ->> 'idempotency_key' IS NOT NULL THEN
        holder := submit_reserve(wanted, opts ->> 'idempotency_key', own, sha256(convert_to(wanted, 'UTF8') || '\x00'::bytea || data));
    END IF;
    IF holder <> own THEN
        IF EXISTS (SELECT FROM job AS j WHERE j.id = holder)
           OR NOT submit_hold_reserved(holder, level, group_of, wanted, due_us, data, meta) THEN
            RETURN holder;
        END IF;
    ELSIF NOT submit_hold(own, level, group_of, wanted, due_us, data, meta) THEN
        PERFORM submit_compare(own, wanted, data);
        RETURN own;
    END IF;
    IF due_us = 0 AND notified THEN
        PERFORM pg_notify(current_schema(), group_of || ' ' || level);
    END IF;
    RETURN holder;
END
$$;

COMMENT ON FUNCTION submit(text, jsonb, jsonb) IS
    'Submits one job in the caller''s transaction; returns its id. Options: at, after, priority, lane, tags, metadata, timeout, '
    'accept_time, complete_time, cancel_slow, max_attempts, delivery, expires, idempotency_key, job_id, allow_unregistered, '
    'on_unserved, notify, checked.';

-- Temporary tables of the session come last (see 0017). What replaces a function has only the settings that it names itself.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION submit(text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema());
END
$$;
