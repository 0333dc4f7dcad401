-- 0039 signal function: signals are sent in SQL, inside any transaction on the master's database.

-- A signal to the jobs that wait for its key, in the caller's transaction; returns how many it has reached. Options: to ('all' or
-- 'one'), keep_for (seconds or the text of an interval), signal_id. Runs with the rights of its maker, as submit does.
CREATE FUNCTION signal(key text, payload jsonb DEFAULT 'null', options jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    valid    constant text[] := ARRAY['to', 'keep_for', 'signal_id'];
    opts     jsonb := jsonb_strip_nulls(coalesce(options, '{}'));
    named    text := submit_name(to_jsonb(key), 'the key of a signal', 200);
    data     bytea := convert_to(submit_json(coalesce(payload, 'null')), 'UTF8');
    most     bigint;
    keep_us  bigint := 0;
    own      uuid := gen_random_uuid();
    answer   record;
    wrong    text;
BEGIN
    SELECT headers_bytes INTO STRICT most FROM submit_rule;
    IF jsonb_typeof(opts) <> 'object' THEN
        PERFORM submit_refuse('the options must be an object, not ' || jsonb_typeof(opts), '{"to": "one", "keep_for": 600}');
    END IF;
    SELECT each INTO wrong FROM jsonb_object_keys(opts) AS each WHERE each <> ALL (valid) ORDER BY each LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('signal has no option ''%s''', left(wrong, 80)),
                              submit_mean(wrong, valid) || 'valid are ' || array_to_string(valid, ', '));
    ELSIF named ~ '["\\]' THEN
        PERFORM submit_refuse('the key of a signal contains a double quote or a backslash: ' || named, 'leave it out, for example order:17');
    ELSIF coalesce(opts ->> 'to', 'all') NOT IN ('all', 'one') THEN
        PERFORM submit_refuse(format('''to'' must be ''all'' or ''one'', not %s', left((opts -> 'to')::text, 80)));
    ELSIF octet_length(data) > most THEN
        PERFORM submit_refuse(format('the payload of the signal has %s bytes, the limit is %s', octet_length(data), most),
                              'send a reference to large data, or raise limits.headers');
    END IF;
    IF opts ? 'keep_for' THEN
        keep_us := submit_span(opts -> 'keep_for', 'keep_for');
        IF keep_us <= 0 OR keep_us > 316224000000000 THEN
            PERFORM submit_refuse(format('''keep_for'' must be more than 0 and at most 316224000 seconds, not %s', opts -> 'keep_for'));
        END IF;
    END IF;
    IF opts ? 'signal_id' THEN
        BEGIN
            own := (opts ->> 'signal_id')::uuid;
        EXCEPTION WHEN invalid_text_representation THEN
            PERFORM submit_refuse(format('signal_id %s is not a UUID', left((opts -> 'signal_id')::text, 80)));
        END;
    END IF;
    LOOP
        SELECT * INTO answer FROM send_signal(own, named, data, coalesce(opts ->> 'to', 'all'), keep_us / 1e6::double precision,
                                              100000, session_user::text, 5000);
        IF answer.status = 'conflict' THEN
            PERFORM submit_refuse(format('signal %s was sent before with another key, payload or recipients', own),
                                  'give each signal an id of its own', '23505');
        ELSIF answer.status = 'full' THEN
            PERFORM submit_refuse('too many signals are kept for jobs to come; this one was not sent',
                                  'send it without keep_for, or with a shorter one', '54000');
        END IF;
        EXIT WHEN answer.finished;
    END LOOP;
    RETURN answer.delivered;
END
$$;

COMMENT ON FUNCTION signal(text, jsonb, jsonb) IS
    'Sends a signal to the jobs that wait for its key, in the caller''s transaction; returns how many it has reached. Options: to, '
    'keep_for, signal_id.';

-- As for submit: temporary tables of the session come last, and a role that may read the views may not therefore send signals.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION signal(text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE ALL ON FUNCTION signal(text, jsonb, jsonb) FROM PUBLIC;
