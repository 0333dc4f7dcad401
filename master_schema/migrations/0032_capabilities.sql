-- 0032 capabilities: what the program of an agent knows, and what a job requires of it.

-- Words of the agent's program; a program that publishes none knows none.
ALTER TABLE agent ADD COLUMN capabilities text[] NOT NULL DEFAULT '{}';

-- The words that a job requires: the first field of its headers, so the first bytes tell. Words have letters and '_' only.
CREATE FUNCTION required_words(headers bytea) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN substring(headers FROM 1 FOR 13) = '{"requires":['::bytea
                THEN string_to_array(replace(split_part(encode(substring(headers FROM 14 FOR 1000), 'escape'), ']', 1), '"', ''), ',')
                ELSE '{}' END
$$;

-- As in 0023; a job with a complete_time requires that word.
ALTER FUNCTION submit_headers(jsonb, submit_rule, bigint, bigint) RENAME TO submit_fields;

CREATE FUNCTION submit_headers(options jsonb, rules submit_rule, now_us bigint, due_us bigint) RETURNS bytea
LANGUAGE plpgsql STABLE AS $$
DECLARE
    fields  bytea := submit_fields(options, rules, now_us, due_us);
    words   text[] := '{}';
BEGIN
    IF submit_limit(options, 'complete_time') > 0 THEN
        words := array_append(words, 'complete_time');
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
