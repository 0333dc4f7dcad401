-- 0026 time limits: accept_time and complete_time of a submit have a least and a greatest value.

-- Microseconds of accept_time or complete_time, 0 = no limit; NULL: not given. A limit without an end cannot be added to a time.
CREATE OR REPLACE FUNCTION submit_limit(options jsonb, name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    number bigint;
BEGIN
    IF options ->> name IS NOT NULL THEN
        number := submit_span(options -> name, name);
        IF number < 0 OR number > 316224000000000
           OR (number = 0 AND jsonb_typeof(options -> name) = 'number' AND (options ->> name)::numeric <> 0) THEN
            PERFORM submit_refuse(format('''%s'' must be 0 (no limit), or 0.000001 to 316224000 seconds, not %s',
                                         name, left((options -> name)::text, 80)));
        END IF;
    END IF;
    RETURN number;
END
$$;
