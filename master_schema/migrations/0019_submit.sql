-- 0019 submit: jobs are submitted in SQL, inside any transaction on the master's database.
-- programs: >= 0018

-- What a submit in SQL must know of the configuration. The migrator and every agent that registers publish it.
CREATE TABLE submit_rule (
    one_row             boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    args_bytes          bigint NOT NULL DEFAULT 131072,
    headers_bytes       bigint NOT NULL DEFAULT 16384,
    tags                integer NOT NULL DEFAULT 16,
    tag_chars           integer NOT NULL DEFAULT 64,
    due_ahead_days      integer NOT NULL DEFAULT 3660,
    clock_skew_seconds  double precision NOT NULL DEFAULT 3600,
    priority            smallint NOT NULL DEFAULT 3,
    lane                text NOT NULL DEFAULT 'default',
    lanes               text[] NOT NULL DEFAULT '{}',  -- that agents of the configuration serve
    published_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO submit_rule DEFAULT VALUES;

-- ------------------------------------------------------------ errors

-- Codes of the standard, so that every driver has a class for them: invalid parameter, unique violation for a conflict,
-- undefined object for an unknown handler or lane, prerequisite state for an unserved job.
CREATE FUNCTION submit_refuse(problem text, hint text DEFAULT NULL, code text DEFAULT '22023') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING MESSAGE = problem, ERRCODE = code;
    END IF;
    RAISE EXCEPTION USING MESSAGE = problem, HINT = hint, ERRCODE = code;
END
$$;

-- The known word that shares most pairs of letters with a misspelt one (Dice 1945); NULL when no word is near.
CREATE FUNCTION submit_nearest(word text, known text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT each FROM (
        SELECT each, 2.0 * (
            SELECT count(*) FROM (
                SELECT substr('^' || lower(word) || '$', i, 2) FROM generate_series(1, length(word) + 1) AS i
                INTERSECT
                SELECT substr('^' || lower(each) || '$', i, 2) FROM generate_series(1, length(each) + 1) AS i
            ) AS common
        ) / (length(word) + length(each) + 2) AS likeness
        FROM unnest(known) AS each
    ) AS compared
    WHERE likeness >= 0.45 AND length(word) <= 64
    ORDER BY likeness DESC, each LIMIT 1
$$;

CREATE FUNCTION submit_mean(word text, known text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce('did you mean ''' || submit_nearest(word, known) || '''? ', '')
$$;

-- A name that is shown in lists: printable, not empty, bounded. The classes are those of Unicode: control, format, separator,
-- private use.
CREATE FUNCTION submit_name(value jsonb, what text, most integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    name text := value #>> '{}';
BEGIN
    IF value IS NULL OR jsonb_typeof(value) <> 'string' THEN
        PERFORM submit_refuse(format('%s must be text, not %s', what, coalesce(value::text, 'null')));
    ELSIF name = '' THEN
        PERFORM submit_refuse(what || ' is empty');
    ELSIF length(name) > most THEN
        PERFORM submit_refuse(format('%s has %s characters, the limit is %s', what, length(name), most));
    ELSIF name ~ ('[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u1680\u180e\u2000-\u200f'
        '\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U00013438'
        '\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\U000f0000-\U000ffffd\U00100000-\U0010fffd]') THEN
        PERFORM submit_refuse(what || ' contains a character that is not printable', 'only printable characters are allowed in names');
    END IF;
    RETURN name;
END
$$;

-- ------------------------------------------------------------ JSON in the form of the programs

-- A float as the programs write it: the fewest digits, with an exponent below 0.00001 and from 1e16 on.
CREATE FUNCTION submit_float(value double precision) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found   text[] := regexp_match(value::text, '^(-?)([0-9]+)\.?([0-9]*)(?:e([+-][0-9]+))?$');
    digits  text := found[2] || found[3];
    power   integer := length(found[2]) - 1 + coalesce(found[4]::integer, 0);
    zeros   integer := length(digits) - length(ltrim(digits, '0'));
BEGIN
    digits := rtrim(ltrim(digits, '0'), '0');
    IF digits = '' THEN
        RETURN found[1] || '0.0';
    END IF;
    power := power - zeros;
    RETURN found[1] || CASE
        WHEN power < -5 OR power > 15 THEN
            left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END || 'e' || power
        WHEN power < 0 THEN '0.' || repeat('0', -power - 1) || digits
        WHEN length(digits) <= power + 1 THEN rpad(digits, power + 1, '0') || '.0'
        ELSE left(digits, power + 1) || '.' || substr(digits, power + 2)
    END;
END
$$;

-- A place in the arguments, for errors: '.sizes[0]' is "argument 'sizes'[0]".
CREATE FUNCTION submit_place(place text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE place WHEN '' THEN 'the arguments' ELSE regexp_replace(place, '^\.([^.[]+)(.*)$', 'argument ''\1''\2') END
$$;

-- JSON without blanks, the keys sorted by code point: what the programs compare and hash. Only what is nested costs a call. A
-- number outside double precision is refused: jsonb can hold it, and no agent could read it.
CREATE FUNCTION submit_json(value jsonb, depth integer DEFAULT 0, place text DEFAULT '') RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    CASE jsonb_typeof(value)
    WHEN 'object' THEN
        IF depth > 100 THEN
            PERFORM submit_refuse('the arguments are nested deeper than 100 levels', 'flatten them');
        END IF;
        RETURN '{' || coalesce((
            SELECT string_agg(to_json(key)::text || ':' || CASE
                WHEN jsonb_typeof(item) IN ('object', 'array') OR jsonb_typeof(item) = 'number'
                     AND (item::text LIKE '%.%' OR length(item::text) > 308)
                THEN submit_json(item, depth + 1, place || '.' || key) ELSE item::text END, ',' ORDER BY key COLLATE "C")
            FROM jsonb_each(value) AS each (key, item)), '') || '}';
    WHEN 'array' THEN
        IF depth > 100 THEN
            PERFORM submit_refuse('the arguments are nested deeper than 100 levels', 'flatten them');
        END IF;
        RETURN '[' || coalesce((
            SELECT string_agg(CASE
                WHEN jsonb_typeof(item) IN ('object', 'array') OR jsonb_typeof(item) = 'number'
                     AND (item::text LIKE '%.%' OR length(item::text) > 308)
                THEN submit_json(item, depth + 1, format('%s[%s]', place, at - 1)) ELSE item::text END, ',' ORDER BY at)
            FROM jsonb_array_elements(value) WITH ORDINALITY AS each (item, at)), '') || ']';
    WHEN 'number' THEN
        IF abs(value::numeric) > 1.7976931348623157e308 OR value::numeric <> 0 AND abs(value::numeric) < 5e-324 THEN
            PERFORM submit_refuse(format('%s: a number with an exponent of %s is outside double precision', submit_place(place),
                                         CASE WHEN abs(value::numeric) > 1 THEN length(trunc(abs(value::numeric))::text) - 1
                                         ELSE floor(log(abs(value::numeric)))::integer END), 'give it as text');
        END IF;
        RETURN CASE WHEN value::text LIKE '%.%' THEN submit_float(value::double precision) ELSE value::text END;
    ELSE
        RETURN value::text;
    END CASE;
END
$$;

-- ------------------------------------------------------------ arguments

CREATE FUNCTION submit_is(kind text, value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind
        WHEN 'integer' THEN jsonb_typeof(value) = 'number' AND value::text NOT LIKE '%.%'
        WHEN 'null' THEN jsonb_typeof(value) = 'null'
        WHEN 'boolean' THEN jsonb_typeof(value) = 'boolean'
        WHEN 'number' THEN jsonb_typeof(value) = 'number'
        WHEN 'string' THEN jsonb_typeof(value) = 'string'
        WHEN 'array' THEN jsonb_typeof(value) = 'array'
        WHEN 'object' THEN jsonb_typeof(value) = 'object'
        ELSE true END
$$;

-- What is wrong with a value by a published JSON Schema, one sentence; NULL when nothing is. A keyword that is not here (a
-- pattern, a format) accepts everything: the agent checks again before it runs the job.
CREATE FUNCTION submit_misfit(schema jsonb, value jsonb, place text, definitions jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    what    text := submit_place(place);
    kinds   text[];
    problem text;
    field   text;
    item    jsonb;
    extra   jsonb;
    size    bigint;
BEGIN
    IF schema ? '$ref' THEN
        schema := definitions -> regexp_replace(schema ->> '$ref', '^.*/', '');
    END IF;
    FOR item IN SELECT schema -> key FROM unnest(ARRAY['anyOf', 'oneOf']) AS key WHERE schema ? key LOOP
        problem := (SELECT max(submit_misfit(choice, value, place, definitions)) FROM jsonb_array_elements(item) AS each (choice)
                    HAVING count(*) = count(submit_misfit(choice, value, place, definitions)));
        IF problem IS NOT NULL THEN
            RETURN problem;
        END IF;
    END LOOP;
    IF schema ? 'type' THEN
        kinds := CASE jsonb_typeof(schema -> 'type') WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(schema -> 'type'))
                 ELSE ARRAY[schema ->> 'type'] END;
        IF NOT EXISTS (SELECT FROM unnest(kinds) AS kind WHERE submit_is(kind, value)) THEN
            RETURN format('%s: expected %s, got %s', what, array_to_string(kinds, ' or '), jsonb_typeof(value));
        END IF;
    END IF;
    IF schema ? 'enum' AND NOT EXISTS (SELECT FROM jsonb_array_elements(schema -> 'enum') AS each (one) WHERE one = value) THEN
        RETURN format('%s: %s is none of %s', what, value, (SELECT string_agg(one::text, ', ')
                                                            FROM jsonb_array_elements(schema -> 'enum') AS each (one)));
    ELSIF schema ? 'const' AND schema -> 'const' <> value THEN
        RETURN format('%s: expected %s, got %s', what, schema -> 'const', value);
    END IF;
    CASE jsonb_typeof(value)
    WHEN 'object' THEN
        FOR field IN SELECT jsonb_array_elements_text(schema -> 'required') LOOP
            IF NOT value ? field THEN
                RETURN CASE place WHEN '' THEN format('missing argument ''%s''', field)
                       ELSE format('%s: missing field ''%s''', what, field) END;
            END IF;
        END LOOP;
        extra := schema -> 'additionalProperties';
        FOR field, item IN SELECT * FROM jsonb_each(value) AS each (name, inside) LOOP
            IF schema -> 'properties' ? field THEN
                problem := submit_misfit(schema -> 'properties' -> field, item, place || '.' || field, definitions);
            ELSIF extra = 'false' THEN
                problem := CASE place WHEN '' THEN '' ELSE what || ': ' END || format('unknown %s ''%s''',
                    CASE place WHEN '' THEN 'argument' ELSE 'field' END, field) || coalesce(' (did you mean ''' || submit_nearest(
                    field, ARRAY(SELECT jsonb_object_keys(coalesce(schema -> 'properties', '{}')))) || '''?)', '');
            ELSIF jsonb_typeof(extra) = 'object' THEN
                problem := submit_misfit(extra, item, place || '.' || field, definitions);
            END IF;
            IF problem IS NOT NULL THEN
                RETURN problem;
            END IF;
        END LOOP;
    WHEN 'array' THEN
        size := jsonb_array_length(value);
        IF size < (schema ->> 'minItems')::bigint OR size > (schema ->> 'maxItems')::bigint THEN
            RETURN format('%s: %s items, the limits are %s and %s', what, size, coalesce(schema ->> 'minItems', '0'),
                          coalesce(schema ->> 'maxItems', 'none'));
        END IF;
        FOR size, item IN SELECT at - 1, one FROM jsonb_array_elements(value) WITH ORDINALITY AS each (one, at) LOOP
            extra := coalesce(schema -> 'prefixItems' -> size::integer, schema -> 'items');
            IF jsonb_typeof(extra) = 'object' THEN
                problem := submit_misfit(extra, item, format('%s[%s]', place, size), definitions);
                IF problem IS NOT NULL THEN
                    RETURN problem;
                END IF;
            END IF;
        END LOOP;
    WHEN 'string' THEN
        size := length(value #>> '{}');
        IF size < (schema ->> 'minLength')::bigint OR size > (schema ->> 'maxLength')::bigint THEN
            RETURN format('%s: %s characters, the limits are %s and %s', what, size, coalesce(schema ->> 'minLength', '0'),
                          coalesce(schema ->> 'maxLength', 'none'));
        END IF;
    WHEN 'number' THEN
        IF value::numeric < (schema ->> 'minimum')::numeric OR value::numeric <= (schema ->> 'exclusiveMinimum')::numeric THEN
            RETURN format('%s: %s is less than the schema allows', what, value);
        ELSIF value::numeric > (schema ->> 'maximum')::numeric OR value::numeric >= (schema ->> 'exclusiveMaximum')::numeric THEN
            RETURN format('%s: %s is more than the schema allows', what, value);
        END IF;
    ELSE
        NULL;
    END CASE;
    RETURN NULL;
END
$$;

-- ------------------------------------------------------------ options

-- Microseconds of a span: seconds as a number, or the text of an interval.
CREATE FUNCTION submit_span(value jsonb, what text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    seconds numeric;
BEGIN
    IF jsonb_typeof(value) = 'number' THEN
        seconds := value::numeric;
    ELSIF jsonb_typeof(value) = 'string' THEN
        BEGIN
            seconds := extract(epoch FROM (value #>> '{}')::interval);
        EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR interval_field_overflow THEN
            seconds := NULL;
        END;
    END IF;
    IF seconds IS NULL OR abs(seconds) > 1e12 THEN
        PERFORM submit_refuse(format('''%s'' must be seconds or the text of an interval, not %s', what, left(value::text, 80)),
                              format('jsonb_build_object(''%s'', 90) or jsonb_build_object(''%s'', interval ''90 minutes'')', what, what));
    END IF;
    RETURN trunc(seconds * 1000000)::bigint;
END
$$;

-- Microseconds since 1970 of a moment with its time zone.
CREATE FUNCTION submit_moment(value jsonb, what text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    given_text text := value #>> '{}';
    zone text := (regexp_match(given_text, ':[0-9.]+ ?([A-Za-z]+(?:/[A-Za-z0-9_+-]+)*)\s*$'))[1];
    moment timestamptz;
BEGIN
    IF jsonb_typeof(value) = 'string' AND given_text ~ '^\s*[0-9]{4,6}-[0-9]{1,2}-[0-9]{1,2}' THEN
        IF given_text !~ ':[0-9.]+ ?(Z|z|[+-][0-9]{1,2}(:?[0-9]{2}){0,2}|[A-Za-z]+(/[A-Za-z0-9_+-]+)*)\s*$' THEN
            PERFORM submit_refuse(format('''%s'' is %s: its time zone is unknown', what, left(value::text, 80)),
                                  'give a time with its zone: a timestamptz, or the text 2030-01-31T09:00:00+01:00');
        END IF;
        BEGIN
            PERFORM to_timestamp(0) AT TIME ZONE zone;  -- PM, BC and Monday are words of a time, too, and no zones
            moment := given_text::timestamptz;
        EXCEPTION WHEN data_exception THEN
            moment := NULL;
        END;
    END IF;
    IF moment IS NULL OR NOT isfinite(moment) THEN
        PERFORM submit_refuse(format('''%s'' must be a time with its zone, not %s', what, left(value::text, 80)),
                              'give a timestamptz, or the text 2030-01-31T09:00:00+01:00');
    END IF;
    RETURN to_us(moment);
END
$$;

-- When the job is due, microseconds since 1970; 0: at once, also for a time in the past.
CREATE FUNCTION submit_due(options jsonb, rules submit_rule, now_us bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    due_us bigint;
BEGIN
    IF options ->> 'at' IS NOT NULL AND options ->> 'after' IS NOT NULL THEN
        PERFORM submit_refuse('both ''at'' and ''after'' are given', 'a job has one due time');
    ELSIF options ->> 'at' IS NOT NULL THEN
        due_us := submit_moment(options -> 'at', 'at');
    ELSIF options ->> 'after' IS NOT NULL THEN
        due_us := now_us + submit_span(options -> 'after', 'after');
    ELSE
        RETURN 0;
    END IF;
    IF due_us - now_us > rules.due_ahead_days * 86400000000 THEN
        PERFORM submit_refuse(format('the due time is %s days ahead, the limit is %s', (due_us - now_us) / 86400000000, rules.due_ahead_days),
                              'raise limits.due_ahead_days, or submit it later');
    END IF;
    RETURN CASE WHEN due_us > now_us THEN due_us ELSE 0 END;
END
$$;

-- Tags, metadata and limits of the job, as the programs write them.
CREATE FUNCTION submit_headers(options jsonb, rules submit_rule, now_us bigint, due_us bigint) RETURNS bytea
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

CREATE FUNCTION submit_priority(value jsonb) RETURNS smallint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    labels constant text[] := ARRAY['very_low', 'low', 'medium', 'high', 'critical'];
    level smallint := CASE WHEN jsonb_typeof(value) = 'number' AND value::text ~ '^[1-5]$' THEN value::text::smallint
                           ELSE array_position(labels, lower(btrim(value #>> '{}'))) END;
BEGIN
    IF level IS NULL OR jsonb_typeof(value) NOT IN ('number', 'string') THEN
        PERFORM submit_refuse(format('unknown priority %s', left(value::text, 80)),
                              submit_mean(left(value #>> '{}', 64), labels) || 'valid are ' || array_to_string(labels, ', '));
    END IF;
    RETURN level;
END
$$;

CREATE FUNCTION submit_flag(options jsonb, name text, otherwise boolean) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(options -> name) NOT IN ('boolean', 'null') THEN
        PERFORM submit_refuse(format('''%s'' must be true or false, not %s', name, left((options -> name)::text, 80)));
    END IF;
    RETURN coalesce((options ->> name)::boolean, otherwise);
END
$$;

-- The id of the job: the caller's, checked, or a fresh one. The time of a UUIDv7 in microseconds stands in its first 60 bits,
-- so ids of one session are in the order of their submits.
CREATE FUNCTION submit_id(given jsonb, rules submit_rule, now_us bigint) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    given_text text := given #>> '{}';
    off_by  double precision;
BEGIN
    IF given_text IS NULL THEN
        RETURN (lpad(to_hex(now_us / 1000), 12, '0') || '7' || lpad(to_hex(now_us % 1000 * 4096 / 1000), 3, '0')
                || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid;
    ELSIF given_text !~* '^[0-9a-f]{8}-?[0-9a-f]{4}-?7[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$' THEN
        PERFORM submit_refuse(format('job_id %s is not a UUIDv7', left(given::text, 80)), 'leave it out: then the id is made here');
    END IF;
    off_by := extract(epoch FROM uuid_moment(given_text::uuid)) - now_us / 1e6;
    IF abs(off_by) > rules.clock_skew_seconds THEN
        PERFORM submit_refuse(format('the time in job_id %s is %s s off the database''s clock, the limit is %s s', given_text::uuid,
                                     round(off_by), rules.clock_skew_seconds),
                              'send a job again within that time, or leave the id out');
    END IF;
    RETURN given_text::uuid;
END
$$;

-- ------------------------------------------------------------ the submit

-- What agents have published about a handler, with the arguments checked against it. Nothing for one that the submitting program
-- declares itself: that program has checked them.
CREATE FUNCTION submit_declared(wanted text, args jsonb, options jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    declared jsonb;
    problem  text;
BEGIN
    IF submit_flag(options, 'checked', false) THEN
        RETURN '{}';
    END IF;
    SELECT h.spec INTO declared FROM handler AS h WHERE h.name = wanted;
    IF NOT FOUND THEN
        IF NOT submit_flag(options, 'allow_unregistered', false) THEN
            PERFORM submit_refuse(format('there is no handler ''%s''', wanted),
                submit_mean(wanted, ARRAY(SELECT h.name FROM handler AS h))
                || 'start an agent that has it, or submit with {"allow_unregistered": true}', '42704');
        END IF;
        RETURN '{}';
    END IF;
    problem := submit_misfit(declared -> 'schema', args, '', coalesce(declared #> '{schema,$defs}', '{}'));
    IF problem IS NOT NULL THEN
        PERFORM submit_refuse(format('handler ''%s'': %s', wanted, problem), format('it takes (%s)',
            (SELECT string_agg(key, ', ') FROM jsonb_object_keys(coalesce(declared #> '{schema,properties}', '{}')) AS key)));
    END IF;
    RETURN declared;
END
$$;

CREATE FUNCTION submit_lane(wanted jsonb, otherwise text, rules submit_rule) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    group_of text := coalesce(wanted #>> '{}', otherwise);
    known    text[];
BEGIN
    IF jsonb_typeof(wanted) <> 'string' OR group_of !~ '^[a-z0-9][a-z0-9_-]{0,47}$' THEN
        PERFORM submit_refuse(format('''%s'' is not the name of a lane', left(group_of, 80)),
                              '1 to 48 lower-case letters, digits, _ and -, the first a letter or digit');
    END IF;
    IF group_of = ANY (rules.lanes) OR EXISTS (SELECT FROM bucket AS b WHERE b.lane = group_of) THEN
        RETURN group_of;
    END IF;
    known := ARRAY(SELECT DISTINCT each FROM (SELECT unnest(rules.lanes) UNION SELECT b.lane FROM bucket AS b) AS lanes (each) ORDER BY each);
    PERFORM submit_refuse(format('no agent serves lane ''%s''', group_of), submit_mean(group_of, known)
        || format('lanes with buckets are %s; add it to an agent''s lanes in the configuration', array_to_string(known, ', ')), '42704');
END
$$;

-- The job that holds an idempotency key: the given one, when the key was free. The holder is read by a second statement,
-- whose snapshot shows the winner. A key that another transaction has reserved and not committed is waited for.
CREATE FUNCTION submit_reserve(scope text, wanted text, own uuid, payload bytea) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    holder uuid;
    held   bytea;
BEGIN
    FOR turn IN 1..5 LOOP
        INSERT INTO idempotency (scope, key, job_id, digest) VALUES (submit_reserve.scope, wanted, own, payload)
        ON CONFLICT ON CONSTRAINT idempotency_pkey DO NOTHING;
        IF FOUND THEN
            RETURN own;
        END IF;
        SELECT i.job_id, i.digest INTO holder, held FROM idempotency AS i WHERE i.scope = submit_reserve.scope AND i.key = wanted;
        EXIT WHEN FOUND;
    END LOOP;
    IF holder IS NULL THEN
        PERFORM submit_refuse('the idempotency key was forgotten as fast as it was reserved', 'repeat the transaction', '40001');
    ELSIF held <> payload THEN
        PERFORM submit_refuse(format('idempotency key ''%s'' of handler ''%s'' belongs to job %s with other arguments', wanted, scope, holder),
                              'use another key, or submit the same arguments', '23505');
    END IF;
    RETURN holder;
END
$$;

-- An id that has a row: the same payload again is the same job.
CREATE FUNCTION submit_compare(own uuid, wanted text, data bytea) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    known job;
    same  boolean;
BEGIN
    SELECT * INTO known FROM job AS j WHERE j.id = own;
    IF NOT FOUND THEN
        PERFORM submit_refuse(format('job %s is older than what the master keeps', own), 'submit it with a new id');
    END IF;
    BEGIN
        same := known.handler = wanted AND convert_to(submit_json(convert_from(known.args, 'UTF8')::jsonb), 'UTF8') = data;
    EXCEPTION WHEN untranslatable_character OR numeric_value_out_of_range OR invalid_parameter_value THEN
        same := false;  -- arguments that jsonb cannot hold were not given here
    END;
    IF NOT same THEN
        PERFORM submit_refuse(format('job %s exists already, for handler ''%s'' with other arguments', own, known.handler),
                              'use a new job_id', '23505');
    END IF;
END
$$;

-- The row of a job that waits; false when its id has one.
CREATE FUNCTION submit_hold(own uuid, level smallint, group_of text, wanted text, due_us bigint, data bytea, meta bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    VALUES (own, 'HELD', level, group_of, wanted, 1, coalesce(from_us(nullif(due_us, 0)), clock_timestamp()), expires_of(meta), data, meta)
    ON CONFLICT (id) DO NOTHING;
    RETURN FOUND;
END
$$;

-- The same under the id that an earlier submit reserved with its key and never used; false also when the key has outlived its
-- job, whose partition was dropped.
CREATE FUNCTION submit_hold_reserved(own uuid, level smallint, group_of text, wanted text, due_us bigint, data bytea, meta bytea)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN submit_hold(own, level, group_of, wanted, due_us, data, meta);
EXCEPTION WHEN check_violation THEN
    RETURN false;
END
$$;

-- One job, submitted in the caller's transaction: it exists when, and only if, the caller commits. The row is that of a
-- producer's HELD insert; agents get a notice with the commit. Runs with the rights of its maker, so a role needs no more than
-- USAGE on the schema and EXECUTE on this function.
CREATE FUNCTION submit(handler text, args jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET extra_float_digits = 1 AS $$
DECLARE
    valid    constant text[] := ARRAY['at', 'after', 'priority', 'lane', 'tags', 'metadata', 'timeout', 'max_attempts', 'delivery',
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
    'max_attempts, delivery, expires, idempotency_key, job_id, allow_unregistered, on_unserved, notify, checked.';

-- Temporary tables of the session come last (see 0017), and a role that may read the views may not therefore submit.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION submit(text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE ALL ON FUNCTION submit(text, jsonb, jsonb) FROM PUBLIC;
