-- 0044 workflow ends: what runs after a failure is never called off; a cancel ends what waits in the same transaction.

-- For lists by state, and for all that have not ended.
CREATE INDEX workflow_state ON workflow (state, id);

-- As in 0030, with the time of the id in the place of the start: a producer's clock may be wrong, and an id may be used long
-- after it was made. An id whose time is far from the present would have no partition, or vanish below the floor.
CREATE OR REPLACE FUNCTION workflow_job_id(w workflow, step integer, try integer) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT (CASE WHEN abs(now_ms - ('x' || left(own, 12))::bit(48)::bigint) < 3600000 AND w.id >= (SELECT floor FROM watermark)
                 THEN left(own, 12)
                 ELSE lpad(to_hex(now_ms), 12, '0') END
            || substr(own, 13, 12) || lpad(to_hex(try), 4, '0') || lpad(to_hex(step), 4, '0'))::uuid
    FROM (SELECT replace(w.id::text, '-', ''), (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS hex (own, now_ms)
$$;

-- Steps that run after a failure or at the end, and those behind them. They run whatever becomes of the others.
CREATE FUNCTION workflow_cleanup(of uuid) RETURNS integer[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE behind (step) AS (
        SELECT s.step FROM workflow_step s WHERE s.workflow = of AND s.runs_on IN ('failure', 'end')
        UNION
        SELECT s.step
        FROM behind b JOIN workflow_step s ON s.workflow = of AND s.runs_on = 'success' AND b.step = ANY (s.parents)
    )
    SELECT coalesce(array_agg(step), '{}') FROM behind
$$;

-- No step is begun any more but those of workflow_cleanup.
CREATE FUNCTION workflow_call_off(of uuid, became text) RETURNS void LANGUAGE sql AS $$
    UPDATE workflow_step s SET state = became
    WHERE s.workflow = of AND s.state = 'PENDING' AND s.runs_on = 'success' AND s.step <> ALL (workflow_cleanup(of))
$$;

-- The job of a step was made and is due: the leader is notified.
CREATE FUNCTION workflow_begun(made uuid, lane text, priority smallint) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(current_schema(), lane || ' ' || priority)
$$;

-- As in 0030. A job that could not be stored is a failure of the step, and a step without results of others needs no savepoint.
CREATE OR REPLACE FUNCTION workflow_run(w workflow, s workflow_step) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    data    bytea := s.args;
    value   text;
    ref     jsonb;
    wrong   text;
    made    uuid := workflow_job_id(w, s.step, s.tries + 1);
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
        INSERT INTO job (id, state, priority, lane, handler, token, due_at, args, headers)
        VALUES (made, 'HELD', s.priority, s.lane, s.handler, 1, clock_timestamp() + s.delay_us * interval '1 microsecond', data,
                s.headers)
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
    ELSIF s.delay_us = 0 THEN
        PERFORM workflow_begun(made, s.lane, s.priority);
    END IF;
    RETURN became;
END
$$;

-- As in 0030, but what runs after a failure is not called off by it, and a workflow that has ended stays as it is.
CREATE OR REPLACE FUNCTION workflow_advance(of uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    w      workflow;
    one    workflow_step;
    became text;
    moved  boolean := true;
    failed boolean;
BEGIN
    SELECT * INTO STRICT w FROM workflow WHERE id = of;
    IF w.ended_at IS NOT NULL THEN
        RETURN;
    END IF;
    WHILE moved LOOP
        moved := false;
        failed := EXISTS (SELECT FROM workflow_step s WHERE s.workflow = of AND s.runs_on <> 'undo'
                                                         AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED'));
        IF w.state = 'RUNNING' AND w.undoes AND failed THEN  -- what was done will be undone: nothing more is begun
            UPDATE workflow SET state = 'FAILING' WHERE id = of;
            w.state := 'FAILING';
            PERFORM workflow_call_off(of, 'BLOCKED');
        END IF;
        FOR one IN
            SELECT s.* FROM workflow_step s
            WHERE s.workflow = of AND s.state = 'PENDING' AND s.runs_on <> 'undo'
              AND NOT EXISTS (SELECT FROM workflow_step p
                              WHERE p.workflow = of AND p.step = ANY (s.parents) AND p.state IN ('PENDING', 'STARTED'))
            ORDER BY s.step
        LOOP
            became := workflow_decide(w, one);
            IF became = 'STARTED' THEN
                became := workflow_run(w, one);
            ELSE
                UPDATE workflow_step SET state = became WHERE workflow = of AND step = one.step;
            END IF;
            moved := moved OR became <> 'STARTED';
        END LOOP;
    END LOOP;
    IF EXISTS (SELECT FROM workflow_step s WHERE s.workflow = of AND s.runs_on <> 'undo' AND s.state IN ('PENDING', 'STARTED')) THEN
        RETURN;
    END IF;
    became := CASE WHEN w.cancelled THEN 'CANCELLED' WHEN failed THEN 'FAILED' ELSE 'SUCCEEDED' END;
    IF w.undoes AND became <> 'SUCCEEDED' THEN
        UPDATE workflow SET state = 'COMPENSATING' WHERE id = of;
        LOOP
            IF EXISTS (SELECT FROM workflow_step s WHERE s.workflow = of AND s.runs_on = 'undo' AND s.state = 'STARTED') THEN
                RETURN;
            END IF;
            SELECT u.* INTO one
            FROM workflow_step u JOIN workflow_step s ON s.workflow = of AND s.step = u.parents[1]
            WHERE u.workflow = of AND u.runs_on = 'undo' AND u.state = 'PENDING' AND s.state = 'SUCCEEDED'
            ORDER BY s.ended DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
            IF EXISTS (SELECT FROM workflow_step s
                       WHERE s.workflow = of AND s.runs_on = 'undo' AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
                became := 'FAILED';  -- what came before it stays done until a person looks
                UPDATE workflow_step u SET state = 'BLOCKED'
                FROM workflow_step s
                WHERE u.workflow = of AND u.runs_on = 'undo' AND u.state = 'PENDING'
                  AND s.workflow = of AND s.step = u.parents[1] AND s.state = 'SUCCEEDED';
                EXIT;
            END IF;
            PERFORM workflow_run(w, one);
        END LOOP;
        IF EXISTS (SELECT FROM workflow_step s
                   WHERE s.workflow = of AND s.runs_on = 'undo' AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
            became := 'FAILED';
        END IF;
    END IF;
    UPDATE workflow_step SET state = 'SKIPPED' WHERE workflow = of AND state = 'PENDING';
    UPDATE workflow SET state = became, ended_at = clock_timestamp() WHERE id = of;
END
$$;

-- As in 0030, but a workflow that is known with other steps is told from the same one: the answer is NULL then.
CREATE OR REPLACE FUNCTION workflow_start(
    of uuid, title text, undoes boolean, args_bytes bigint, numbers integer[], names text[], runs_on text[], parents text[],
    choices text[], handlers text[], priorities smallint[], lanes text[], args bytea[], refs text[], headers bytea[],
    delays_us bigint[], kept boolean[]
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO workflow (id, name, undoes, args_bytes) VALUES (of, title, undoes, args_bytes) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN CASE WHEN (SELECT w.name = title FROM workflow w WHERE w.id = of)
                     AND (SELECT count(*) = cardinality(numbers) FROM workflow_step s WHERE s.workflow = of)
                     AND NOT EXISTS (
                         SELECT n.* FROM unnest(numbers, runs_on, parents::text[], handlers, args, headers, delays_us) AS n
                         EXCEPT
                         SELECT s.step, s.runs_on, s.parents::text, s.handler, s.args, s.headers, s.delay_us
                         FROM workflow_step s WHERE s.workflow = of)
               THEN false END;
    END IF;
    INSERT INTO workflow_step (workflow, step, name, runs_on, parents, choice, handler, priority, lane, args, refs, headers, delay_us, kept)
    SELECT of, n.step, n.name, n.runs_on, n.parents::integer[], n.choice::jsonb, n.handler, n.priority, n.lane, n.args, n.refs::jsonb,
           n.headers, n.delay_us, n.kept
    FROM unnest(numbers, names, runs_on, parents, choices, handlers, priorities, lanes, args, refs, headers, delays_us, kept)
         AS n (step, name, runs_on, parents, choice, handler, priority, lane, args, refs, headers, delay_us, kept);
    PERFORM workflow_advance(of);
    RETURN true;
END
$$;

-- As in 0030, and the jobs of the steps that run are cancelled in the same transaction, as requests/cancel does it. Like the end
-- of a step it locks jobs first, by their ids, and the workflow second.
DROP FUNCTION workflow_cancel(uuid, text);
CREATE FUNCTION workflow_cancel(of uuid, actor text, OUT cancelled boolean, OUT jobs uuid[]) LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    locked uuid[];
    state  text;
BEGIN
    locked := ARRAY(SELECT s.job_id FROM workflow_step s WHERE s.workflow = of AND s.state = 'STARTED' ORDER BY s.job_id);
    PERFORM FROM job j
    WHERE j.id = ANY (locked) AND j.id BETWEEN locked[1] AND locked[cardinality(locked)] ORDER BY j.id FOR UPDATE;
    SELECT w.state INTO state FROM workflow w WHERE w.id = of FOR UPDATE;
    cancelled := coalesce(state IN ('RUNNING', 'FAILING'), false);
    IF NOT cancelled AND state IS DISTINCT FROM 'CANCELLING' THEN
        jobs := '{}';
        RETURN;
    END IF;
    jobs := ARRAY(SELECT s.job_id FROM workflow_step s
                  WHERE s.workflow = of AND s.state = 'STARTED' AND s.runs_on = 'success' AND s.step <> ALL (workflow_cleanup(of))
                  ORDER BY s.job_id);
    IF NOT jobs <@ locked THEN
        RAISE serialization_failure USING MESSAGE = 'a step has begun meanwhile';
    END IF;
    IF NOT cancelled THEN
        RETURN;
    END IF;
    UPDATE workflow SET state = 'CANCELLING', cancelled = true WHERE id = of;
    INSERT INTO operator_log (actor, action, subject) VALUES (actor, 'workflow cancel', of::text);
    PERFORM workflow_call_off(of, 'CANCELLED');
    PERFORM workflow_advance(of);
    UPDATE job j
    SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
        changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
        expires_at = NULL,
        cancel_requested = true
    WHERE j.id = ANY (jobs) AND j.id BETWEEN jobs[1] AND jobs[cardinality(jobs)]
      AND j.state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING');
END
$$;

-- As in 0030, and what runs after a failure or at the end is decided again.
CREATE OR REPLACE FUNCTION workflow_retry(of uuid, actor text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    undone boolean;
BEGIN
    PERFORM FROM workflow WHERE id = of FOR UPDATE;
    undone := EXISTS (SELECT FROM workflow_step s WHERE s.workflow = of AND s.runs_on = 'undo' AND s.tries > 0);
    IF undone AND NOT EXISTS (SELECT FROM workflow_step s WHERE s.workflow = of AND s.runs_on = 'undo'
                                                             AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'BLOCKED')) THEN
        RETURN false;
    END IF;
    UPDATE workflow SET state = CASE WHEN undone THEN 'COMPENSATING' ELSE 'RUNNING' END, cancelled = cancelled AND undone, ended_at = NULL
    WHERE id = of AND state IN ('FAILED', 'CANCELLED');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE workflow_step s SET state = 'PENDING', ended = NULL, error = NULL
    WHERE s.workflow = of
      AND CASE WHEN undone THEN s.runs_on = 'undo' AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'BLOCKED')
               ELSE s.state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'BLOCKED') OR (s.state = 'SKIPPED' AND s.runs_on = 'undo')
                    OR s.step = ANY (workflow_cleanup(of)) END;
    INSERT INTO operator_log (actor, action, subject) VALUES (actor, 'workflow retry', of::text);
    PERFORM workflow_advance(of);
    RETURN true;
END
$$;

-- As in 0030: CREATE OR REPLACE keeps rights, and forgets the search path.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid::regprocedure FROM pg_proc p
               WHERE p.pronamespace = current_schema()::regnamespace
                 AND p.proname IN ('workflow_start', 'workflow_cancel', 'workflow_retry') LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', one, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one);
    END LOOP;
END
$$;
