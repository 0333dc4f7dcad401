-- 0055 unique submits: the SQL function submit takes unique keys, and jobs of handlers with limits require that word.

-- Whether a name has only printable characters; see submit_name in 0019.
CREATE FUNCTION submit_printable(name text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT name !~ ('[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u1680\u180e\u2000-\u200f'
        '\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U00013438'
        '\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\U000f0000-\U000ffffd\U00100000-\U0010fffd]')
$$;

-- A job that has run already and waits again: for its next attempt, after a rescue, or put off by its handler. (Values of
-- metadata are text, so no other field holds these bytes before a digit.)
CREATE FUNCTION has_begun(attempt integer, rescues integer, headers bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT attempt + rescues > 0
           OR position('"snoozes":'::bytea IN headers) > 0 AND encode(headers, 'escape') ~ '"snoozes":[1-9]'
$$;

-- As in 0034; a job that its handler has put off has started.
CREATE OR REPLACE FUNCTION submit_unique(
    handler text, wanted text, own uuid, level smallint, group_of text, data bytea, headers bytea, due_us bigint,
    terms text, span_us bigint, aligned boolean, on_conflict text, passed uuid, recalls boolean,
    OUT answer text, OUT job_id uuid, OUT holder uuid, OUT limit_us bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held   unique_key;
    there  job_state;
    begun  boolean;
    fresh  boolean;
    ends   timestamptz;
    later  timestamptz;
BEGIN
    job_id := own;
    LOOP
        INSERT INTO unique_key AS u (handler, key, job_id, term, held_at, until)
        VALUES (submit_unique.handler, wanted, own, terms, clock_timestamp(), CASE terms WHEN 'window' THEN clock_timestamp() END)
        ON CONFLICT ON CONSTRAINT unique_key_pkey DO NOTHING;
        fresh := FOUND;
        EXIT WHEN fresh;
        SELECT * INTO held FROM unique_key AS u WHERE u.handler = submit_unique.handler AND u.key = wanted FOR UPDATE;
        EXIT WHEN FOUND;  -- else it was forgotten between the two statements
    END LOOP;
    IF EXISTS (SELECT FROM job AS j WHERE j.id = own) THEN
        IF fresh THEN
            DELETE FROM unique_key AS u WHERE u.handler = submit_unique.handler AND u.key = wanted;
        END IF;
        answer := 'known';
        RETURN;
    END IF;
    IF NOT fresh THEN
        IF on_conflict = 'debounce' THEN
            limit_us := to_us(held.held_at) + span_us;
            later := least(coalesce(from_us(nullif(due_us, 0)), clock_timestamp()), from_us(limit_us));
            UPDATE job AS j SET due_at = later, changed_at = clock_timestamp()
            WHERE j.id = held.job_id AND j.state = 'HELD' AND NOT has_begun(j.attempt, j.rescues, j.headers)
              AND (j.expires_at IS NULL OR later < j.expires_at);
            IF FOUND THEN
                answer := 'debounced';
                job_id := held.job_id;
                holder := held.job_id;
                RETURN;
            END IF;
        END IF;
        IF on_conflict = 'replace' THEN
            SELECT j.state, has_begun(j.attempt, j.rescues, j.headers) INTO there, begun FROM job AS j WHERE j.id = held.job_id FOR UPDATE;
        ELSE
            SELECT j.state, has_begun(j.attempt, j.rescues, j.headers) INTO there, begun FROM job AS j WHERE j.id = held.job_id;
        END IF;
        begun := begun OR there NOT IN ('HELD', 'ASSIGNED') OR held.job_id IS NOT DISTINCT FROM passed;
        IF on_conflict = 'debounce' AND recalls AND NOT begun THEN
            answer := 'recall';
            job_id := held.job_id;
            holder := held.job_id;
            RETURN;
        END IF;
        IF (CASE held.term
               WHEN 'window' THEN held.until > clock_timestamp()
               WHEN 'live' THEN there NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
               ELSE NOT begun AND NOT (on_conflict = 'debounce' AND there = 'ASSIGNED')
           END) THEN
            holder := held.job_id;
            IF on_conflict <> 'replace' OR there IS NULL OR there IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN
                answer := 'existing';
                job_id := held.job_id;
                RETURN;
            END IF;
        END IF;
    END IF;
    IF terms = 'window' THEN
        ends := CASE WHEN aligned THEN from_us((to_us(clock_timestamp()) / span_us + 1) * span_us)
                     ELSE clock_timestamp() + span_us * interval '1 microsecond' END;
        headers := with_header(headers, format('"unique_from_us":%s,"unique_until_us":%s', to_us(clock_timestamp()), to_us(ends)));
    END IF;
    INSERT INTO job AS j (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    VALUES (own, 'HELD', level, group_of, submit_unique.handler, 1, coalesce(from_us(nullif(due_us, 0)), clock_timestamp()),
            expires_of(headers), data, headers)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- below the watermark
        IF fresh THEN
            DELETE FROM unique_key AS u WHERE u.handler = submit_unique.handler AND u.key = wanted;
        END IF;
        answer := 'refused';
        RETURN;
    END IF;
    UPDATE unique_key AS u SET job_id = own, term = terms, held_at = clock_timestamp(), until = ends
    WHERE u.handler = submit_unique.handler AND u.key = wanted;
    answer := CASE WHEN holder IS NULL THEN 'created' ELSE 'replaced' END;
    IF holder IS NOT NULL THEN
        UPDATE job AS j
        SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
            changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
            expires_at = NULL,
            cancel_requested = true,
            headers = with_header(j.headers, format('"superseded_by":"%s"', own))
        WHERE j.id = holder;
    END IF;
END
$$;

-- ------------------------------------------------------------ submits in SQL

-- The options of submit.
CREATE FUNCTION submit_options() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY['at', 'after', 'priority', 'lane', 'tags', 'metadata', 'timeout', 'accept_time', 'complete_time', 'cancel_slow',
                 'max_attempts', 'delivery', 'wait_for', 'expires', 'ordering_key', 'idempotency_key', 'unique', 'job_id',
                 'allow_unregistered', 'on_unserved', 'notify', 'checked']
$$;

-- A key that is made of the arguments: of those that are named, or of all. In the form of the programs.
CREATE FUNCTION submit_unique_key(args jsonb, names jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    made text := submit_json(CASE WHEN names IS NULL THEN args ELSE (
        SELECT jsonb_object_agg(name, coalesce(args -> name, 'null')) FROM jsonb_array_elements_text(names) AS each (name)) END);
BEGIN
    RETURN CASE WHEN length(made) <= 200 AND submit_printable(made) THEN made
                ELSE 'sha256 ' || encode(sha256(convert_to(made, 'UTF8')), 'hex') END;
END
$$;

-- Names of arguments that make a unique key.
CREATE FUNCTION submit_unique_args(names jsonb, declared jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    known jsonb := coalesce(declared #> '{schema,properties}', '{}');
    wrong text;
BEGIN
    IF jsonb_typeof(names) <> 'array' OR names = '[]' THEN
        PERFORM submit_refuse(format('args of ''unique'' must be a list of argument names, not %s', left(names::text, 80)));
    END IF;
    PERFORM submit_name(name, 'an argument of ''unique''', 200) FROM jsonb_array_elements(names) AS each (name);
    SELECT name INTO wrong FROM jsonb_array_elements_text(names) AS each (name) GROUP BY name HAVING count(*) > 1 LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('args of ''unique'' has a name twice: %s', wrong));
    END IF;
    SELECT name INTO wrong FROM jsonb_array_elements_text(names) AS each (name) WHERE declared ? 'schema' AND NOT known ? name LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('args of ''unique'' has ''%s'', which is no argument of handler ''%s''', wrong, declared ->> 'name'),
                              submit_mean(wrong, ARRAY(SELECT jsonb_object_keys(known)))
                              || 'its arguments are ' || (SELECT string_agg(name, ', ') FROM jsonb_object_keys(known) AS each (name)));
    END IF;
END
$$;

-- The option unique, checked, in the form in which agents publish that of a handler.
CREATE FUNCTION submit_unique_option(given jsonb, declared jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    valid    constant text[] := ARRAY['key', 'args', 'window', 'throttle', 'debounce', 'on_conflict'];
    item     jsonb := jsonb_strip_nulls(given);
    spans    text[];
    wrong    text;
    span_us  bigint := 0;
    action   text;
BEGIN
    IF jsonb_typeof(item) <> 'object' THEN
        PERFORM submit_refuse(format('''unique'' must be an object, not %s', left(item::text, 80)), '{"unique": {"key": "customer 42"}}');
    END IF;
    SELECT each INTO wrong FROM jsonb_object_keys(item) AS each WHERE each <> ALL (valid) ORDER BY each LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('''unique'' has no option ''%s''', left(wrong, 80)),
                              submit_mean(wrong, valid) || 'valid are ' || array_to_string(valid, ', '));
    END IF;
    spans := ARRAY(SELECT each FROM unnest(ARRAY['window', 'throttle', 'debounce']) AS each WHERE item ? each);
    action := coalesce(item ->> 'on_conflict', 'existing');
    IF cardinality(spans) > 1 THEN
        PERFORM submit_refuse(format('''unique'' has %s: a key is held in one way', array_to_string(spans, ' and ')), 'leave out all but one');
    ELSIF item ? 'key' AND item ? 'args' THEN
        PERFORM submit_refuse('''unique'' has key and args: the key is given, or made of arguments', 'leave out one');
    ELSIF action NOT IN ('existing', 'reject', 'replace') THEN
        PERFORM submit_refuse(format('on_conflict of ''unique'' must be ''existing'', ''reject'' or ''replace'', not %s',
                                     left((item -> 'on_conflict')::text, 80)),
                              'debounce moves the due time of the job that holds the key');
    ELSIF item ? 'debounce' AND action <> 'existing' THEN
        PERFORM submit_refuse('''unique'' has debounce and on_conflict: debounce moves the job that holds the key');
    ELSIF item ? 'key' THEN
        PERFORM submit_name(item -> 'key', 'the key of ''unique''', 200);
    ELSIF item ? 'args' THEN
        PERFORM submit_unique_args(item -> 'args', declared);
    END IF;
    IF cardinality(spans) = 1 THEN
        span_us := submit_span(item -> spans[1], spans[1]);
        IF span_us < 1000 OR span_us > 316224000000000 THEN
            PERFORM submit_refuse(format('%s of ''unique'' must be 0.001 to 316224000 seconds, not %s', spans[1],
                                         left((item -> spans[1])::text, 80)));
        END IF;
    END IF;
    RETURN jsonb_build_object(
        'key', item -> 'key', 'args', item -> 'args', 'span_us', span_us, 'aligned', spans = '{throttle}',
        'term', CASE WHEN spans = '{}' THEN 'live' WHEN spans = '{debounce}' THEN 'waiting' ELSE 'window' END,
        'on_conflict', CASE WHEN spans = '{debounce}' THEN 'debounce' ELSE action END);
END
$$;

-- How the job holds a unique key: by the option, else as its handler declares; NULL when it holds none.
CREATE FUNCTION submit_terms(options jsonb, declared jsonb, args jsonb, due_us bigint, now_us bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    terms   jsonb := nullif(options -> 'unique', 'null');
    span_us bigint;
BEGIN
    IF terms IS NOT NULL AND options ->> 'idempotency_key' IS NOT NULL THEN
        PERFORM submit_refuse('''unique'' and ''idempotency_key'' are given: a job has one key', 'leave out one of them');
    ELSIF terms IS NOT NULL THEN
        terms := submit_unique_option(terms, declared);
    ELSIF options ->> 'idempotency_key' IS NULL THEN
        terms := nullif(declared -> 'unique', 'null');
    END IF;
    IF terms IS NULL THEN
        RETURN NULL;
    END IF;
    IF options ->> 'wait_for' IS NOT NULL THEN
        PERFORM submit_refuse('the job would wait for a signal and hold a unique key: a key has no such job',
                              'submit it without ''wait_for'', or with an ''idempotency_key'' and without ''unique''');
    END IF;
    terms := jsonb_strip_nulls(terms);
    -- What is published leaves out defaults.
    terms := '{"term": "live", "span_us": 0, "aligned": false, "on_conflict": "existing"}' || terms
             || CASE WHEN terms ? 'key' THEN '{}' ELSE jsonb_build_object('key', submit_unique_key(args, terms -> 'args')) END;
    IF terms ->> 'on_conflict' = 'debounce' THEN
        span_us := terms ->> 'span_us';
        IF due_us = 0 THEN
            PERFORM submit_refuse('a debounced submit needs a due time in the future', 'give ''after'', such as 10');
        ELSIF due_us - now_us > span_us THEN
            PERFORM submit_refuse(format('the submit is due %s s from now, and ''debounce'' of its key moves a due time at most %s s',
                                         (due_us - now_us) / 1e6::double precision, span_us / 1e6::double precision),
                                  'give a longer debounce, or a shorter ''after''');
        END IF;
    END IF;
    RETURN terms;
END
$$;

-- Submits the job under its key; the id of the job that holds it then.
CREATE FUNCTION submit_holding(
    wanted text, terms jsonb, own uuid, level smallint, group_of text, data bytea, meta bytea, due_us bigint, notified boolean
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    done record;
BEGIN
    SELECT * INTO done FROM submit_unique(
        wanted, terms ->> 'key', own, level, group_of, data,
        with_header(meta, format('"unique_key":%s,"unique_term":"%s"', to_json(terms ->> 'key')::text, terms ->> 'term')),
        due_us, terms ->> 'term', (terms ->> 'span_us')::bigint, (terms ->> 'aligned')::boolean, terms ->> 'on_conflict', NULL, false);
    IF done.answer = 'known' THEN
        PERFORM submit_compare(own, wanted, data);
    ELSIF done.answer = 'refused' THEN
        PERFORM submit_refuse(format('job %s is older than what the master keeps', own), 'submit it with a new id');
    ELSIF done.answer = 'existing' AND terms ->> 'on_conflict' = 'reject' THEN
        PERFORM submit_refuse(format('job %s holds the unique key ''%s'' of handler ''%s''', done.job_id, terms ->> 'key', wanted),
                              CASE terms ->> 'term' WHEN 'live' THEN 'wait for its end, or submit with on_conflict ''existing'' or ''replace'''
                                                    ELSE 'submit again after the window' END, '23505');
    ELSIF done.answer IN ('created', 'replaced') AND due_us = 0 AND notified THEN
        PERFORM pg_notify(current_schema(), group_of || ' ' || level);
    END IF;
    RETURN done.job_id;
END
$$;

-- Headers of a job that also requires this capability; the words stay in their order.
CREATE FUNCTION headers_requiring(headers bytea, word text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT convert_to('{"requires":[' || (
               SELECT string_agg(DISTINCT '"' || each || '"', ',' ORDER BY '"' || each || '"')
               FROM unnest(required_words(headers) || word) AS each
           ) || ']', 'UTF8')
           || CASE WHEN octet_length(headers) <= 2 THEN '\x7d'::bytea  -- }
                   WHEN required_words(headers) = '{}' THEN '\x2c'::bytea || substring(headers FROM 2)  -- ,
                   ELSE substring(headers FROM position('\x5d'::bytea IN headers) + 1) END  -- ]
$$;

-- The headers of a job of this handler: an agent that does not know limits would start it without a permit.
CREATE FUNCTION submit_required(wanted text, options jsonb, meta bytea) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM handler AS h WHERE h.name = wanted AND h.spec -> 'limited' = 'true') THEN
        RETURN meta;
    ELSIF submit_limit(options, 'complete_time') > 0 THEN
        PERFORM submit_refuse(format('handler ''%s'' has a limit, which cannot count a slow run that goes on after ''complete_time''', wanted),
                              'leave ''complete_time'' out, and give a timeout, which ends slow runs');
    END IF;
    RETURN headers_requiring(meta, 'limits');
END
$$;

-- As in 0053, with unique keys. Its options, and what a job requires, are functions of their own: a later one replaces these.
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
    meta := submit_required(wanted, opts, submit_in_order(submit_headers(opts, rules, now_us, due_us), opts, rules));
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
    'accept_time, complete_time, cancel_slow, max_attempts, delivery, wait_for, expires, ordering_key, idempotency_key, job_id, '
    'unique, allow_unregistered, on_unserved, notify, checked.';

-- Temporary tables of the session come last (see 0017). What replaces a function has only the settings that it names itself.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid::regprocedure FROM pg_proc p
               WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN ('submit', 'submit_unique') LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', one, current_schema());
    END LOOP;
END
$$;
