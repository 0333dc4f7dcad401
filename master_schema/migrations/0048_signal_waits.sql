-- 0048 signal waits: submit in SQL has wait_for, many jobs wait for one signal in one statement, and what races for signals.

-- A statement after a lock must see what was committed before the lock was given. The snapshot of a whole transaction does not.
CREATE FUNCTION signal_isolation() RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM submit_refuse(format('a transaction of isolation %s cannot send a signal or submit a job that waits for one: '
                                     'the two could miss each other', upper(current_setting('transaction_isolation'))),
                              'use READ COMMITTED for it, or do this after its commit', '0A000');
    END IF;
END
$$;

-- As in 0028, and the jobs go in by one statement; each is looked at again only when a signal is kept for its key. One that has
-- received a signal and is due sends a notice.
DROP FUNCTION hold_waiting(uuid[], smallint[], text[], text[], bytea[], bytea[], bigint[]);

CREATE FUNCTION hold_waiting(new_ids uuid[], priorities smallint[], lanes text[], handlers text[], new_args bytea[],
                             new_headers bytea[], due_times bigint[], notified boolean DEFAULT true) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    accepted uuid[];
    keys     text[];
    forms    text[];
    new      record;
    kept     signal;
    group_of text;
    groups   text[] := '{}';
BEGIN
    PERFORM signal_isolation();
    SELECT array_agg(DISTINCT signal_key(each)), array_agg(DISTINCT convert_from(decode(signal_key(each), 'escape'), 'UTF8'))
    INTO forms, keys FROM unnest(new_headers) AS each;
    PERFORM pg_advisory_xact_lock_shared(number)
    FROM (SELECT DISTINCT signal_lock(form) AS number FROM unnest(forms) AS form ORDER BY 1) AS locks;
    WITH waits AS (
        INSERT INTO job AS j (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
        SELECT each.id, 'WAITING', each.priority, each.lane, each.handler, 1,
               coalesce(from_us(nullif(each.due_us, 0)), clock_timestamp()),
               least(expires_of(each.headers), clock_timestamp() + make_interval(secs => signal_seconds(each.headers))),
               each.args, each.headers
        FROM unnest(new_ids, priorities, lanes, handlers, new_args, new_headers, due_times)
             AS each (id, priority, lane, handler, args, headers, due_us)
        ORDER BY each.id
        ON CONFLICT (id) DO NOTHING
        RETURNING j.id
    )
    SELECT coalesce(array_agg(id ORDER BY id), '{}') INTO accepted FROM waits;
    -- In a statement of its own, after the locks: its snapshot has every signal that was kept before.
    IF NOT EXISTS (SELECT FROM signal AS s WHERE s.key = ANY (keys) AND s.kept_until > clock_timestamp()) THEN
        RETURN accepted;
    END IF;
    FOR new IN
        SELECT j.id, j.headers FROM job AS j
        WHERE j.id = ANY (accepted) AND j.id BETWEEN accepted[1] AND accepted[cardinality(accepted)]
        ORDER BY j.id
    LOOP
        LOOP
            SELECT * INTO kept FROM signal AS s
            WHERE s.key = convert_from(decode(signal_key(new.headers), 'escape'), 'UTF8')
              AND s.kept_until IS NOT NULL AND s.kept_until > clock_timestamp()
            ORDER BY s.sent_at LIMIT 1;
            EXIT WHEN NOT FOUND OR kept.recipients = 'all';
            -- Another job may have taken it since; then the next one is looked for.
            UPDATE signal AS s SET kept_until = NULL, delivered = 1 WHERE s.id = kept.id AND s.kept_until IS NOT NULL;
            EXIT WHEN FOUND;
        END LOOP;
        IF kept.id IS NOT NULL THEN
            UPDATE job AS j
            SET state = 'HELD', expires_at = expires_of(j.headers), headers = signal_received(j.headers, kept)
            WHERE j.id = new.id
            RETURNING CASE WHEN j.due_at <= clock_timestamp() THEN j.lane || ' ' || j.priority END INTO group_of;
            IF group_of IS NOT NULL AND group_of <> ALL (groups) THEN
                groups := array_append(groups, group_of);
            END IF;
        END IF;
    END LOOP;
    IF notified THEN
        FOREACH group_of IN ARRAY groups LOOP
            PERFORM pg_notify(current_schema(), group_of);
        END LOOP;
    END IF;
    RETURN accepted;
END
$$;

-- As in 0028. Kept signals that are over, or that this one replaces, do not count; an id that two senders give to different signals
-- at the same time is refused.
CREATE OR REPLACE FUNCTION send_signal(new_id uuid, new_key text, new_payload bytea, new_recipients text, keep_seconds double precision,
                                       keep_most integer, new_actor text, portion integer,
                                       OUT status text, OUT delivered bigint, OUT finished boolean, OUT kept_until timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    key_form  text := signal_key_form(new_key);
    sent      signal;
    is_new    boolean;
    waiting   uuid[];
    group_of  text;
    groups    text[];
BEGIN
    PERFORM signal_isolation();
    PERFORM pg_advisory_xact_lock(signal_lock(key_form));
    SELECT * INTO sent FROM signal AS s WHERE s.id = new_id;
    is_new := NOT FOUND;
    IF NOT is_new THEN
        delivered := sent.delivered;
        kept_until := sent.kept_until;
        finished := true;
        IF (sent.key, sent.payload, sent.recipients) IS DISTINCT FROM (new_key, new_payload, new_recipients) THEN
            status := 'conflict';
            RETURN;
        ELSIF sent.finished THEN
            status := 'repeated';
            RETURN;
        END IF;
    ELSE
        IF keep_seconds > 0 AND (SELECT count(*) FROM (
            SELECT FROM signal AS s
            WHERE s.kept_until > clock_timestamp()
              AND NOT (new_recipients = 'all' AND s.recipients = 'all' AND s.key = new_key)
            LIMIT keep_most) AS kept) >= keep_most THEN
            status := 'full';
            delivered := 0;
            finished := true;
            RETURN;
        END IF;
        sent := ROW(new_id, new_key, new_recipients, new_payload, new_actor, clock_timestamp(), 0, false, NULL);
    END IF;
    status := 'sent';
    delivered := sent.delivered;
    kept_until := sent.kept_until;
    IF is_new AND new_recipients = 'all' AND keep_seconds > 0 THEN
        kept_until := sent.sent_at + make_interval(secs => keep_seconds);
        UPDATE signal AS s SET kept_until = NULL
        WHERE s.key = new_key AND s.recipients = 'all' AND s.kept_until IS NOT NULL;  -- the newest news for all is the news
    END IF;
    LOOP
        -- In a statement of its own, after the lock: its snapshot has every job that began to wait before the lock.
        waiting := ARRAY(
            SELECT j.id FROM job AS j
            WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form
            ORDER BY j.id
            LIMIT CASE new_recipients WHEN 'one' THEN 1 ELSE portion END
            FOR UPDATE
        );
        WITH moved AS (
            UPDATE job AS j
            SET state = 'HELD', due_at = greatest(j.due_at, clock_timestamp()), expires_at = expires_of(j.headers),
                headers = signal_received(j.headers, sent), changed_at = clock_timestamp()
            WHERE j.id = ANY (waiting) AND j.id BETWEEN waiting[1] AND waiting[cardinality(waiting)]
              AND j.state = 'WAITING' AND j.bucket_id IS NULL
            RETURNING j.lane || ' ' || j.priority AS part, j.due_at
        )
        SELECT delivered + count(*), array_agg(DISTINCT part) FILTER (WHERE due_at <= clock_timestamp())
        INTO delivered, groups FROM moved;
        -- A row that was changed while this waited for its lock is in no portion; so whether more wait is looked up.
        finished := new_recipients = 'one' AND delivered > 0 OR NOT EXISTS (
            SELECT FROM job AS j
            WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form);
        EXIT WHEN finished OR cardinality(waiting) > 0;
    END LOOP;
    IF new_recipients = 'one' AND delivered = 0 AND keep_seconds > 0 THEN
        kept_until := sent.sent_at + make_interval(secs => keep_seconds);
    END IF;
    IF delivered > 0 OR kept_until IS NOT NULL OR NOT finished THEN
        INSERT INTO signal AS s (id, key, recipients, payload, actor, sent_at, delivered, finished, kept_until)
        VALUES (new_id, new_key, new_recipients, new_payload, new_actor, sent.sent_at, send_signal.delivered,
                send_signal.finished, send_signal.kept_until)
        ON CONFLICT (id) DO UPDATE
        SET delivered = EXCLUDED.delivered, finished = EXCLUDED.finished, kept_until = EXCLUDED.kept_until
        WHERE s.key = EXCLUDED.key;  -- one of another key has another lock
        IF NOT FOUND THEN
            PERFORM submit_refuse(format('signal %s is sent with another key at the same time', new_id),
                                  'give each signal an id of its own', '40001');
        END IF;
    END IF;
    FOREACH group_of IN ARRAY coalesce(groups, '{}') LOOP
        PERFORM pg_notify(current_schema(), group_of);
    END LOOP;
END
$$;

-- ------------------------------------------------------------ the option wait_for of a submit in SQL

-- The field of the headers, as the programs write it.
CREATE FUNCTION submit_wait(value jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    valid  constant text[] := ARRAY['key', 'timeout', 'on_timeout'];
    given  jsonb := CASE jsonb_typeof(value) WHEN 'string' THEN jsonb_build_object('key', value) ELSE value END;
    named  text;
    wrong  text;
    number bigint;
BEGIN
    IF jsonb_typeof(given) <> 'object' THEN
        PERFORM submit_refuse(format('''wait_for'' must be the key of a signal, or an object with it, not %s', left(value::text, 80)),
                              '{"wait_for": {"key": "order:17", "timeout": "1 day"}}');
    END IF;
    SELECT each INTO wrong FROM jsonb_object_keys(given) AS each WHERE each <> ALL (valid) ORDER BY each LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('''wait_for'' has no field ''%s''', left(wrong, 80)),
                              submit_mean(wrong, valid) || 'valid are ' || array_to_string(valid, ', '));
    END IF;
    named := submit_name(given -> 'key', 'the key of a signal', 200);
    IF named ~ '["\\]' THEN
        PERFORM submit_refuse('the key of a signal contains a double quote or a backslash: ' || named, 'leave it out, for example order:17');
    ELSIF coalesce(given ->> 'on_timeout', 'expire') NOT IN ('expire', 'run') THEN
        PERFORM submit_refuse(format('''on_timeout'' must be ''expire'' or ''run'', not %s', left((given -> 'on_timeout')::text, 80)));
    ELSIF given ->> 'on_timeout' = 'run' AND given ->> 'timeout' IS NULL THEN
        PERFORM submit_refuse('''on_timeout'' is ''run'', and the wait has no time-out', 'give wait_for a timeout');
    END IF;
    IF given ->> 'timeout' IS NOT NULL THEN
        number := submit_span(given -> 'timeout', 'timeout');
        IF number <= 0 OR number > 316224000000000 THEN
            PERFORM submit_refuse(format('''timeout'' of a signal must be more than 0 and at most 316224000 seconds, not %s',
                                         given -> 'timeout'));
        END IF;
    END IF;
    RETURN '"signal":{"key":' || to_json(named)::text
           || coalesce(',"seconds":' || submit_float(number / 1e6::double precision), '')
           || CASE WHEN given ->> 'on_timeout' = 'run' THEN ',"run":true' ELSE '' END || '}';
END
$$;

-- As in 0032; a job that waits for a signal requires that word.
CREATE OR REPLACE FUNCTION submit_headers(options jsonb, rules submit_rule, now_us bigint, due_us bigint) RETURNS bytea
LANGUAGE plpgsql STABLE AS $$
DECLARE
    fields  bytea := submit_fields(options, rules, now_us, due_us);
    words   text[] := '{}';
BEGIN
    IF submit_limit(options, 'complete_time') > 0 THEN
        words := array_append(words, 'complete_time');
    END IF;
    IF options ->> 'wait_for' IS NOT NULL THEN
        words := array_append(words, 'signals');
        fields := with_header(fields, submit_wait(options -> 'wait_for'));
    END IF;
    IF words = '{}' THEN
        RETURN fields;
    END IF;
    fields := convert_to('{"requires":["' || array_to_string(words, '","') || '"],', 'UTF8') || substring(fields FROM 2);
    IF octet_length(fields) > rules.headers_bytes THEN
        PERFORM submit_refuse(format('tags, metadata and options have %s bytes together, the limit is %s',
                                     octet_length(fields), rules.headers_bytes),
                              'put large data into the arguments or a store of its own');
    END IF;
    RETURN fields;
END
$$;

-- The row of a job, with a notice when it is due; false when its id has a row. A job with a signal in its headers waits for it.
DROP FUNCTION submit_hold_reserved(uuid, smallint, text, text, bigint, bytea, bytea);
DROP FUNCTION submit_hold(uuid, smallint, text, text, bigint, bytea, bytea);

CREATE FUNCTION submit_hold(own uuid, level smallint, group_of text, wanted text, due_us bigint, data bytea, meta bytea,
                            notified boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF signal_key(meta) IS NOT NULL THEN
        RETURN own = ANY (hold_waiting(ARRAY[own], ARRAY[level], ARRAY[group_of], ARRAY[wanted], ARRAY[data], ARRAY[meta],
                                       ARRAY[due_us], notified));
    END IF;
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    VALUES (own, 'HELD', level, group_of, wanted, 1, coalesce(from_us(nullif(due_us, 0)), clock_timestamp()), expires_of(meta), data, meta)
    ON CONFLICT (id) DO NOTHING;
    IF FOUND AND due_us = 0 AND notified THEN
        PERFORM pg_notify(current_schema(), group_of || ' ' || level);
    END IF;
    RETURN FOUND;
END
$$;

-- The same under the id that an earlier submit reserved with its key and never used; false also when the key has outlived its
-- job, whose partition was dropped.
CREATE FUNCTION submit_hold_reserved(own uuid, level smallint, group_of text, wanted text, due_us bigint, data bytea, meta bytea,
                                     notified boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN submit_hold(own, level, group_of, wanted, due_us, data, meta, notified);
EXCEPTION WHEN check_violation THEN
    RETURN false;
END
$$;

-- As in 0023, with wait_for.
CREATE OR REPLACE FUNCTION submit(handler text, args jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET extra_float_digits = 1 AS $$
DECLARE
    valid    constant text[] := ARRAY['at', 'after', 'priority', 'lane', 'tags', 'metadata', 'timeout', 'accept_time',
                                      'complete_time', 'cancel_slow', 'max_attempts', 'delivery', 'wait_for',
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
    'accept_time, complete_time, cancel_slow, max_attempts, delivery, wait_for, expires, idempotency_key, job_id, allow_unregistered, '
    'on_unserved, notify, checked.';

-- Temporary tables of the session come last (see 0017). What replaces a function has only the settings that it names itself.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION submit(text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION hold_waiting(uuid[], smallint[], text[], text[], bytea[], bytea[], bigint[], boolean) '
                   'SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION send_signal(uuid, text, bytea, text, double precision, integer, text, integer) '
                   'SET search_path = %I, pg_temp', current_schema());
END
$$;
