-- 0037 submit limits: a submit in SQL compares complete_time and cancel_slow with what the handler declares, as programs do.

-- As in 0019, with that comparison.
CREATE OR REPLACE FUNCTION submit_declared(wanted text, args jsonb, options jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    declared jsonb;
    problem  text;
    complete bigint;
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
    IF options ?| ARRAY['complete_time', 'cancel_slow'] THEN
        complete := submit_limit(options, 'complete_time');
        IF complete > 0 AND options ->> 'timeout' IS NULL AND complete >= (declared ->> 'timeout_seconds')::numeric * 1000000 THEN
            PERFORM submit_refuse(format('''complete_time'' (%s) must be less than the handler''s timeout (%s), which ends the attempt',
                                         options ->> 'complete_time', declared ->> 'timeout_seconds'));
        ELSIF submit_flag(options, 'cancel_slow', false)
              AND coalesce(complete, (declared ->> 'complete_seconds')::numeric * 1000000, 0) = 0 THEN
            PERFORM submit_refuse('''cancel_slow'' goes with ''complete_time'', after which the slow run is stopped');
        END IF;
    END IF;
    RETURN declared;
END
$$;
