-- 0030 workflows: steps that run after one another, and what undoes them.

-- A step becomes a job when its parents have ended; until then it has no job. What follows the end of a step is decided by a
-- trigger of job, in the statement that ends it: the next step exists if and only if the outcome stands, whichever
-- statement ends the job (COPY, upsert, cancel, rescue, expiry, a handler's own transaction).
CREATE TABLE workflow (
    id             uuid PRIMARY KEY,                -- a UUIDv7 whose last four bytes are 0; its jobs differ in those alone
    name           text NOT NULL,
    state          text NOT NULL DEFAULT 'RUNNING'
                   CHECK (state IN ('RUNNING', 'FAILING', 'CANCELLING', 'COMPENSATING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
    cancelled      boolean NOT NULL DEFAULT false,  -- by a person; it ends as CANCELLED
    undoes         boolean NOT NULL,                -- some step has a compensation
    args_bytes     bigint NOT NULL,                 -- limit of the arguments of a step, results of others included
    ends           integer NOT NULL DEFAULT 0,      -- steps that have ended: compensations run in the reverse order
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at       timestamptz,
    CONSTRAINT workflow_ended CHECK ((ended_at IS NOT NULL) = (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')))
);
CREATE INDEX workflow_ended_at ON workflow (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE workflow_step (
    workflow       uuid NOT NULL REFERENCES workflow ON DELETE CASCADE,
    step           integer NOT NULL CHECK (step BETWEEN 1 AND 65535),
    name           text NOT NULL,
    state          text NOT NULL DEFAULT 'PENDING'
                   CHECK (state IN ('PENDING', 'STARTED', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED', 'SKIPPED', 'BLOCKED')),
    runs_on        text NOT NULL CHECK (runs_on IN ('success', 'failure', 'end', 'undo')),
    parents        integer[] NOT NULL,              -- of a compensation: the step that it undoes
    choice         jsonb,                           -- {"step", "path", "in": [JSON texts], "else": bool}: a branch on a result
    handler        text NOT NULL,
    priority       smallint NOT NULL,
    lane           text NOT NULL,
    args           bytea NOT NULL,                  -- JSON object, without the results that belong into it
    refs           jsonb NOT NULL,                  -- [[position in args, step, path]...], the last position first
    headers        bytea NOT NULL,
    delay_us       bigint NOT NULL,                 -- between the last end of a parent and the due time
    kept           boolean NOT NULL,                -- another step needs its result
    result         bytea,                           -- of a kept one; its job may have left the master
    job_id         uuid,                            -- the latest; NULL: it was never started
    tries          integer NOT NULL DEFAULT 0,
    ended          integer,                         -- its place in the order of the ends
    error          text,                            -- why it failed without a job
    PRIMARY KEY (workflow, step)
) WITH (fillfactor = 70);

-- The workflow of a job, from its headers. Values of metadata are text, so no other field can hold these bytes.
CREATE FUNCTION workflow_of(headers bytea) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT substring(encode(headers, 'escape') FROM '"workflow":\["([0-9a-f-]{36})",[0-9]+\]')::uuid
$$;

-- Id of the job of a step: the workflow's, with try and step in the last four bytes, so that jobs of a workflow are neighbours
-- and their order is that of the workflows (a statement that ends many jobs locks workflows in that order). After an hour
-- the time part is the present: the range of the workflow may retire while it runs.
CREATE FUNCTION workflow_job_id(w workflow, step integer, try integer) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT (CASE WHEN w.started_at > clock_timestamp() - interval '1 hour' THEN left(own, 12)
                 ELSE lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') END
            || substr(own, 13, 12) || lpad(to_hex(try), 4, '0') || lpad(to_hex(step), 4, '0'))::uuid
    FROM (SELECT replace(w.id::text, '-', '')) AS hex (own)
$$;

-- JSON of the result of a step, or of a part of it; NULL: the result has no such part. A step that was skipped has null.
CREATE FUNCTION workflow_value(of uuid, number integer, path text[]) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN s.state <> 'SUCCEEDED' OR s.result IS NULL THEN 'null'
                WHEN path = '{}' THEN convert_from(s.result, 'UTF8')
                ELSE (convert_from(s.result, 'UTF8')::json #> path)::text END
    FROM workflow_step s WHERE s.workflow = of AND s.step = number
$$;

CREATE FUNCTION workflow_path(value jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(each ORDER BY place), '{}') FROM jsonb_array_elements_text(value) WITH ORDINALITY AS p (each, place)
$$;

-- Start a step: its job is HELD and due, after its delay. When its arguments cannot be made it has failed, without a job.
CREATE FUNCTION workflow_run(w workflow, s workflow_step) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    data    bytea := s.args;
    value   text;
    ref     jsonb;
    wrong   text;
    made    uuid := workflow_job_id(w, s.step, s.tries + 1);
    known   job;
    became  text := 'STARTED';
BEGIN
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
    IF wrong IS NULL AND octet_length(data) > w.args_bytes THEN
        wrong := format('the arguments have %s bytes with the results in them, the limit is %s', octet_length(data), w.args_bytes);
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM workflow_end_step(w.id, s.step, 'FAILED', NULL, wrong);
        RETURN 'FAILED';
    END IF;
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, args, headers)
    VALUES (made, 'HELD', s.priority, s.lane, s.handler, 1, clock_timestamp() + s.delay_us * interval '1 microsecond', data, s.headers)
    ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN  -- a failover has forgotten its start, and its row has come back with a copy of the job
        SELECT * INTO known FROM job j WHERE j.id = made;
        IF known.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN
            became := known.state;
        END IF;
    END IF;
    UPDATE workflow_step SET state = 'STARTED', job_id = made, tries = tries + 1 WHERE workflow = w.id AND step = s.step;
    IF became <> 'STARTED' THEN
        PERFORM workflow_end_step(w.id, s.step, became, known.result, NULL);
    ELSIF s.delay_us = 0 THEN
        PERFORM pg_notify(current_schema(), s.lane || ' ' || s.priority);
    END IF;
    RETURN became;
END
$$;

CREATE FUNCTION workflow_end_step(of uuid, number integer, became text, value bytea, wrong text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    place integer;
BEGIN
    UPDATE workflow SET ends = ends + 1 WHERE id = of RETURNING ends INTO place;
    UPDATE workflow_step
    SET state = became, ended = place, result = CASE WHEN kept AND became = 'SUCCEEDED' THEN value END, error = wrong
    WHERE workflow = of AND step = number;
END
$$;

-- What a step becomes whose parents have ended: STARTED, SKIPPED (a branch that was not taken), BLOCKED (a parent failed).
CREATE FUNCTION workflow_decide(w workflow, s workflow_step) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    failed  boolean;
    blocked boolean;
    done    boolean;
    value   text;
BEGIN
    SELECT coalesce(bool_or(p.state IN ('FAILED', 'CANCELLED', 'EXPIRED')), false), coalesce(bool_or(p.state = 'BLOCKED'), false),
           coalesce(bool_or(p.state = 'SUCCEEDED'), true)
    INTO failed, blocked, done
    FROM workflow_step p WHERE p.workflow = w.id AND p.step = ANY (s.parents);
    IF s.runs_on = 'end' THEN
        RETURN 'STARTED';
    ELSIF s.runs_on = 'failure' THEN
        RETURN CASE WHEN failed THEN 'STARTED' ELSE 'SKIPPED' END;
    ELSIF failed OR blocked THEN
        RETURN 'BLOCKED';
    ELSIF NOT done THEN
        RETURN 'SKIPPED';
    ELSIF s.choice IS NOT NULL THEN
        BEGIN
            value := workflow_value(w.id, (s.choice -> 'step')::integer, workflow_path(s.choice -> 'path'));
        EXCEPTION WHEN data_exception THEN
            value := NULL;
        END;
        RETURN CASE WHEN (coalesce(s.choice -> 'in' ? value, false)) <> (s.choice -> 'else')::boolean THEN 'STARTED' ELSE 'SKIPPED' END;
    END IF;
    RETURN 'STARTED';
END
$$;

-- Everything that follows from the states of the steps. The caller has locked the workflow in a statement before, so that of
-- two parents that end at once the second one sees the first one's end.
CREATE FUNCTION workflow_advance(of uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    w      workflow;
    one    workflow_step;
    became text;
    moved  boolean := true;
    failed boolean;
BEGIN
    SELECT * INTO STRICT w FROM workflow WHERE id = of;
    WHILE moved LOOP
        moved := false;
        failed := EXISTS (SELECT FROM workflow_step s WHERE s.workflow = of AND s.runs_on <> 'undo'
                                                         AND s.state IN ('FAILED', 'CANCELLED', 'EXPIRED'));
        IF w.state = 'RUNNING' AND w.undoes AND failed THEN  -- what was done will be undone: nothing more is begun
            UPDATE workflow SET state = 'FAILING' WHERE id = of;
            w.state := 'FAILING';
        END IF;
        IF w.state IN ('FAILING', 'CANCELLING') THEN
            UPDATE workflow_step SET state = CASE w.state WHEN 'FAILING' THEN 'BLOCKED' ELSE 'CANCELLED' END
            WHERE workflow = of AND state = 'PENDING' AND runs_on = 'success';
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

-- The job of a step has ended. The lock comes first and alone: what the next statement reads is later than the wait for it.
CREATE FUNCTION workflow_step_ended() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    number integer;
BEGIN
    PERFORM FROM workflow WHERE id = workflow_of(NEW.headers) FOR UPDATE;
    SELECT s.step INTO number FROM workflow_step s
    WHERE s.workflow = workflow_of(NEW.headers) AND s.job_id = NEW.id AND s.state = 'STARTED';
    IF FOUND THEN
        PERFORM workflow_end_step(workflow_of(NEW.headers), number, NEW.state::text, NEW.result, NULL);
        PERFORM workflow_advance(workflow_of(NEW.headers));
    END IF;
    RETURN NULL;
END
$$;

-- A row that ends no step costs these conditions, and no event is queued for it.
CREATE TRIGGER workflow_step_inserted AFTER INSERT ON job FOR EACH ROW
WHEN (position('"workflow":['::bytea IN NEW.headers) > 0 AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED'))
EXECUTE FUNCTION workflow_step_ended();

CREATE TRIGGER workflow_step_updated AFTER UPDATE OF state ON job FOR EACH ROW
WHEN (position('"workflow":['::bytea IN NEW.headers) > 0 AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
      AND OLD.state IS DISTINCT FROM NEW.state)
EXECUTE FUNCTION workflow_step_ended();

-- Store a workflow and start the steps that have no parents. False: the id is known already, and nothing was stored.
CREATE FUNCTION workflow_start(
    of uuid, title text, undoes boolean, args_bytes bigint, numbers integer[], names text[], runs_on text[], parents text[],
    choices text[], handlers text[], priorities smallint[], lanes text[], args bytea[], refs text[], headers bytea[],
    delays_us bigint[], kept boolean[]
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO workflow (id, name, undoes, args_bytes) VALUES (of, title, undoes, args_bytes) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
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

-- Nothing more of a workflow is begun; what was done is undone when the steps that run have ended.
CREATE FUNCTION workflow_cancel(of uuid, actor text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM workflow WHERE id = of FOR UPDATE;
    UPDATE workflow SET state = 'CANCELLING', cancelled = true WHERE id = of AND state IN ('RUNNING', 'FAILING');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO operator_log (actor, action, subject) VALUES (actor, 'workflow cancel', of::text);
    PERFORM workflow_advance(of);
    RETURN true;
END
$$;

-- A workflow that has failed goes on from the steps that failed; one whose compensation failed, with that compensation.
CREATE FUNCTION workflow_retry(of uuid, actor text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
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
    UPDATE workflow_step SET state = 'PENDING', ended = NULL, error = NULL
    WHERE workflow = of
      AND CASE WHEN undone THEN runs_on = 'undo' AND state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'BLOCKED')
               ELSE state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'BLOCKED') OR (state = 'SKIPPED' AND runs_on <> 'success') END;
    INSERT INTO operator_log (actor, action, subject) VALUES (actor, 'workflow retry', of::text);
    PERFORM workflow_advance(of);
    RETURN true;
END
$$;

-- Temporary tables of the session come last (see 0017); no role but the programs' own calls these functions.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid::regprocedure FROM pg_proc p
               WHERE p.pronamespace = current_schema()::regnamespace
                 AND p.proname IN ('workflow_step_ended', 'workflow_start', 'workflow_cancel', 'workflow_retry') LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', one, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one);
    END LOOP;
END
$$;
