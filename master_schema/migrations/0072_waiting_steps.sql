-- 0072 waiting steps: a step of a workflow may wait for a signal before it runs.

-- As in 0044. The job of a step that waits for a signal is WAITING from the moment at which the steps before it have ended; its
-- time-out begins then. It shares the lock of the key, and receives what is kept, as a job that is submitted with wait_for.
CREATE OR REPLACE FUNCTION workflow_run(w workflow, s workflow_step) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    data    bytea := s.args;
    value   text;
    ref     jsonb;
    wrong   text;
    made    uuid := workflow_job_id(w, s.step, s.tries + 1);
    waits   text := signal_key(s.headers);
    known   job;
    became  text := 'STARTED';
BEGIN
    IF s.refs <> '[]' THEN
        BEGIN
            FOR ref IN SELECT each FROM jsonb_array_elements(s.refs) AS each LOOP
                value := workflow_value(w.id, (ref -> 1)::integer, workflow_path(ref -> 2));
                IF value IS NULL THEN
                    wrong := format('the result of step %s has no %s', ref -> 1, array_to_string(workflow_path(ref -> 2), '.'));
                    EXIT;
                END IF;
                data := overlay(data PLACING convert_to(value, 'UTF8') FROM (ref -> 0)::integer + 1 FOR 0);
            END LOOP;
        EXCEPTION WHEN data_exception THEN
            wrong := 'a result cannot be passed on: ' || SQLERRM;
        END;
    END IF;
    IF wrong IS NULL AND octet_length(data) > w.args_bytes THEN
        wrong := format('the arguments have %s bytes with the results in them, the limit is %s', octet_length(data), w.args_bytes);
    END IF;
    IF wrong IS NULL THEN
        IF waits IS NOT NULL THEN
            PERFORM signal_isolation();
            PERFORM pg_advisory_xact_lock_shared(signal_lock(waits));
        END IF;
        INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
        VALUES (made, CASE WHEN waits IS NULL THEN 'HELD' ELSE 'WAITING' END::job_state, s.priority, s.lane, s.handler, 1,
                clock_timestamp() + s.delay_us * interval '1 microsecond',
                CASE WHEN waits IS NOT NULL THEN clock_timestamp() + make_interval(secs => signal_seconds(s.headers)) END,
                data, s.headers)
        ON CONFLICT (id) DO NOTHING;
        IF NOT FOUND THEN  -- a failover has forgotten its start, and its row has come back with a copy of the job
            SELECT * INTO known FROM job j WHERE j.id = made;
            IF known.id IS NULL THEN
                wrong := format('its job %s lies below the floor', made);
            ELSIF known.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN
                became := known.state;
            END IF;
        END IF;
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM workflow_end_step(w.id, s.step, 'FAILED', NULL, wrong);
        RETURN 'FAILED';
    END IF;
    UPDATE workflow_step SET state = 'STARTED', job_id = made, tries = tries + 1 WHERE workflow = w.id AND step = s.step;
    IF became <> 'STARTED' THEN
        PERFORM workflow_end_step(w.id, s.step, became, known.result, NULL);
    ELSIF waits IS NOT NULL THEN
        PERFORM receive_kept(ARRAY[made], ARRAY[convert_from(decode(waits, 'escape'), 'UTF8')], true);
    ELSIF s.delay_us = 0 THEN
        PERFORM workflow_begun(made, s.lane, s.priority);
    END IF;
    RETURN became;
END
$$;
