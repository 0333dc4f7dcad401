-- 0057 submit options: unique keys and tenants of one submit in SQL.

-- The options of submit. (A later migration that adds one replaces this function, and those that submit calls.)
CREATE OR REPLACE FUNCTION submit_options() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY['at', 'after', 'priority', 'lane', 'tags', 'metadata', 'timeout', 'accept_time', 'complete_time', 'cancel_slow',
                 'max_attempts', 'delivery', 'wait_for', 'expires', 'ordering_key', 'tenant', 'idempotency_key', 'unique', 'job_id',
                 'allow_unregistered', 'on_unserved', 'notify', 'checked']
$$;

-- As in 0056 and 0055.
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
    meta := submit_required(wanted, opts, submit_of_tenant(submit_in_order(submit_headers(opts, rules, now_us, due_us), opts, rules), opts, rules));
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
    'accept_time, complete_time, cancel_slow, max_attempts, delivery, wait_for, expires, ordering_key, tenant, idempotency_key, job_id, '
    'unique, allow_unregistered, on_unserved, notify, checked.';

-- Temporary tables of the session come last (see 0017). What replaces a function has only the settings that it names itself.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION submit(text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema());
END
$$;
