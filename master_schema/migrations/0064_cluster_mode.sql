-- 0064 cluster mode: a cluster works, moves to another master, or is archived.

-- MOVED is final: the job lives on in the master of another cluster.
ALTER TYPE job_state ADD VALUE 'MOVED';

ALTER TABLE cluster
    ADD COLUMN mode text NOT NULL DEFAULT 'active' CHECK (mode IN ('active', 'migrating', 'archived')),
    ADD COLUMN mode_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- Jobs on their way to another master. There is at most one line.
CREATE TABLE cluster_move (
    one_row        boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    target         uuid NOT NULL,                   -- uid of the cluster they go to
    target_name    text NOT NULL,                   -- of it, for people
    began_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    page           uuid[] NOT NULL DEFAULT '{}',    -- jobs that may have a row in the target and are not MOVED here
    moved          bigint NOT NULL DEFAULT 0
);

CREATE FUNCTION refuse_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the cluster is archived: it takes no jobs'
        USING ERRCODE = 'JM001',
              HINT = 'submit to the cluster that took its place, or run: jobmaster cluster mode active';
END
$$;

-- Changes the mode; the former one. The way to archived locks out writers of job for the moment of the check, and leaves a trigger
-- that refuses every new row; a cluster in another mode has no such trigger, and pays nothing.
CREATE FUNCTION set_cluster_mode(wanted text, by_actor text, why text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    former text;
    left_over bigint;
BEGIN
    SELECT mode INTO STRICT former FROM cluster FOR UPDATE;
    IF former = wanted THEN
        RETURN former;
    END IF;
    IF wanted = 'active' AND EXISTS (SELECT FROM cluster_move WHERE page <> '{}') THEN
        RAISE EXCEPTION 'a move to another master was interrupted, and some jobs may be in both'
            USING ERRCODE = 'JM001',
                  HINT = 'run jobmaster migrate again, with the same target; it begins with these jobs';
    END IF;
    IF wanted = 'archived' THEN
        LOCK TABLE job IN SHARE ROW EXCLUSIVE MODE;
        SELECT count(*) INTO left_over FROM (
            SELECT FROM job WHERE state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING') LIMIT 1000
        ) AS unfinished;
        IF left_over > 0 THEN
            RAISE EXCEPTION '% jobs have not ended', CASE WHEN left_over = 1000 THEN 'at least 1000' ELSE left_over::text END
                USING ERRCODE = 'JM001',
                      HINT = 'wait for their end, cancel them, or move them: jobmaster migrate';
        END IF;
        SELECT count(*) INTO left_over FROM bucket WHERE state <> 'READY_TO_DELETE';
        IF left_over > 0 THEN
            RAISE EXCEPTION '% buckets are open, and may hold jobs', left_over
                USING ERRCODE = 'JM001',
                      HINT = 'stop the agents, or run jobmaster cluster mode migrating and wait until their buckets are complete';
        END IF;
        CREATE TRIGGER refuse_archived BEFORE INSERT ON job FOR EACH STATEMENT EXECUTE FUNCTION refuse_archived();
    ELSIF former = 'archived' THEN
        DROP TRIGGER refuse_archived ON job;
    END IF;
    UPDATE cluster SET mode = wanted, mode_at = clock_timestamp();
    INSERT INTO operator_log (actor, action, subject, detail)
    VALUES (by_actor, 'cluster mode', wanted, jsonb_build_object('former', former, 'reason', why));
    RETURN former;
END
$$;

-- Whether a job stays in its cluster when the others move: it is a step of a workflow or belongs to a batch, which are continued
-- and counted where they began.
CREATE FUNCTION stays_here(id uuid, headers bytea) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT position('"workflow":['::bytea IN headers) > 0
        OR EXISTS (SELECT FROM batch_range r WHERE r.lo = (left(id::text, 28) || '00000000')::uuid)
$$;

-- Rows of a table of another cluster, as JSON; those whose key is here are left alone. Jobs below the watermark go to the attic.
CREATE FUNCTION take_rows(table_name text, rows jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    taken bigint;
BEGIN
    PERFORM set_config('jobmaster.attic_mover', 'on', true);
    EXECUTE format('INSERT INTO %1$I SELECT r.* FROM jsonb_populate_recordset(NULL::%1$I, $1) AS r ON CONFLICT DO NOTHING',
                   table_name) USING rows;
    GET DIAGNOSTICS taken = ROW_COUNT;
    PERFORM set_config('jobmaster.attic_mover', 'off', true);
    RETURN taken;
END
$$;

CREATE FUNCTION rows_to_move(table_name text) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    found jsonb;
BEGIN
    EXECUTE format('SELECT coalesce(jsonb_agg(to_jsonb(t)), ''[]'') FROM %I t', table_name) INTO found;
    RETURN found;
END
$$;
