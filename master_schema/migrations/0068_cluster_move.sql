-- 0068 cluster move: what goes to another master goes in portions, signals of the old cluster reach jobs of the new one, and a job that
-- has moved holds its unique key.

-- Signals that were kept in this cluster and go to another one; they are kept here no more. A line goes when the other cluster has the
-- signal.
CREATE TABLE passed_signal (
    sent_at          timestamptz NOT NULL,
    id               uuid NOT NULL,
    key              text NOT NULL,
    recipients       text NOT NULL,
    payload          bytea NOT NULL,
    actor            text NOT NULL,
    kept_until       timestamptz NOT NULL,
    PRIMARY KEY (sent_at, id)
);

-- As in 0055. A job that has MOVED holds its key on: it lives in the master of another cluster, where this one can neither replace it
-- nor change its due time.
CREATE OR REPLACE FUNCTION submit_unique(
    handler text, wanted text, own uuid, level smallint, group_of text, data bytea, headers bytea, due_us bigint,
    terms text, span_us bigint, aligned boolean, on_conflict text, passed uuid, recalls boolean,
    OUT answer text, OUT job_id uuid, OUT holder uuid, OUT limit_us bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held   unique_key;
    there  job_state;
    begun  boolean;
    fresh  boolean;
    ends   timestamptz;
    later  timestamptz;
BEGIN
    job_id := own;
    LOOP
        INSERT INTO unique_key AS u (handler, key, job_id, term, held_at, until)
        VALUES (submit_unique.handler, wanted, own, terms, clock_timestamp(), CASE terms WHEN 'window' THEN clock_timestamp() END)
        ON CONFLICT ON CONSTRAINT unique_key_pkey DO NOTHING;
        fresh := FOUND;
        EXIT WHEN fresh;
        SELECT * INTO held FROM unique_key AS u WHERE u.handler = submit_unique.handler AND u.key = wanted FOR UPDATE;
        EXIT WHEN FOUND;  -- else it was forgotten between the two statements
    END LOOP;
    IF EXISTS (SELECT FROM job AS j WHERE j.id = own) THEN
        IF fresh THEN
            DELETE FROM unique_key AS u WHERE u.handler = submit_unique.handler AND u.key = wanted;
        END IF;
        answer := 'known';
        RETURN;
    END IF;
    IF NOT fresh THEN
        IF on_conflict = 'debounce' THEN
            limit_us := to_us(held.held_at) + span_us;
            later := least(coalesce(from_us(nullif(due_us, 0)), clock_timestamp()), from_us(limit_us));
            UPDATE job AS j SET due_at = later, changed_at = clock_timestamp()
            WHERE j.id = held.job_id AND j.state = 'HELD' AND NOT has_begun(j.attempt, j.rescues, j.headers)
              AND (j.expires_at IS NULL OR later < j.expires_at);
            IF FOUND THEN
                answer := 'debounced';
                job_id := held.job_id;
                holder := held.job_id;
                RETURN;
            END IF;
        END IF;
        IF on_conflict = 'replace' THEN
            SELECT j.state, has_begun(j.attempt, j.rescues, j.headers) INTO there, begun FROM job AS j WHERE j.id = held.job_id FOR UPDATE;
        ELSE
            SELECT j.state, has_begun(j.attempt, j.rescues, j.headers) INTO there, begun FROM job AS j WHERE j.id = held.job_id;
        END IF;
        begun := begun OR there NOT IN ('HELD', 'ASSIGNED') OR held.job_id IS NOT DISTINCT FROM passed;
        IF on_conflict = 'debounce' AND recalls AND NOT begun THEN
            answer := 'recall';
            job_id := held.job_id;
            holder := held.job_id;
            RETURN;
        END IF;
        IF (CASE held.term
               WHEN 'window' THEN held.until > clock_timestamp()
               WHEN 'live' THEN there NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
               ELSE there = 'MOVED' OR NOT begun AND NOT (on_conflict = 'debounce' AND there = 'ASSIGNED')
           END) THEN
            holder := held.job_id;
            IF on_conflict <> 'replace' OR there IS NULL
               OR there IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED', 'MOVED') THEN
                answer := 'existing';
                job_id := held.job_id;
                RETURN;
            END IF;
        END IF;
    END IF;
    IF terms = 'window' THEN
        ends := CASE WHEN aligned THEN from_us((to_us(clock_timestamp()) / span_us + 1) * span_us)
                     ELSE clock_timestamp() + span_us * interval '1 microsecond' END;
        headers := with_header(headers, format('"unique_from_us":%s,"unique_until_us":%s', to_us(clock_timestamp()), to_us(ends)));
    END IF;
    INSERT INTO job AS j (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    VALUES (own, 'HELD', level, group_of, submit_unique.handler, 1, coalesce(from_us(nullif(due_us, 0)), clock_timestamp()),
            expires_of(headers), data, headers)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- below the watermark
        IF fresh THEN
            DELETE FROM unique_key AS u WHERE u.handler = submit_unique.handler AND u.key = wanted;
        END IF;
        answer := 'refused';
        RETURN;
    END IF;
    UPDATE unique_key AS u SET job_id = own, term = terms, held_at = clock_timestamp(), until = ends
    WHERE u.handler = submit_unique.handler AND u.key = wanted;
    answer := CASE WHEN holder IS NULL THEN 'created' ELSE 'replaced' END;
    IF holder IS NOT NULL THEN
        UPDATE job AS j
        SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
            changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
            expires_at = NULL,
            cancel_requested = true,
            headers = with_header(j.headers, format('"superseded_by":"%s"', own))
        WHERE j.id = holder;
    END IF;
END
$$;

-- ------------------------------------------------------------ rows of one cluster in another one

-- Rows of a table, as JSON, in the order of a time column (if one is given) and its primary key.
--   newer_than: only those whose time is later; NULL: all.
--   written:    only those that a transaction with this number or a later one has written; NULL: all.
--   after:      the place of the last row of the page before; NULL: from the first one.
DROP FUNCTION rows_to_move(text);

CREATE FUNCTION rows_to_move(table_name text, time_column text, newer_than timestamptz, written bigint, after text[], most integer)
RETURNS TABLE (row_text text, place text[]) LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    names    text[];
    casts    text[];
    ordered  text;
    ahead    bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
BEGIN
    SELECT array_agg(format('t.%I', a.attname) ORDER BY k.n), array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY k.n)
    INTO names, casts
    FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (number, n)
    JOIN pg_attribute a ON a.attnum = k.number
    WHERE i.indrelid = quote_ident(table_name)::regclass AND i.indisprimary AND a.attrelid = i.indrelid;
    IF time_column IS NOT NULL THEN
        names := format('t.%I', time_column) || names;
        casts := 'timestamptz'::text || casts;
    END IF;
    ordered := array_to_string(names, ', ');
    RETURN QUERY EXECUTE format(
        'SELECT to_jsonb(t)::text, ARRAY[%s]::text[] FROM %I t WHERE true%s%s%s ORDER BY %s LIMIT $1',
        (SELECT string_agg(name || '::text', ', ' ORDER BY n) FROM unnest(names) WITH ORDINALITY AS each (name, n)),
        table_name,
        CASE WHEN newer_than IS NOT NULL THEN format(' AND %s > $2', names[1]) END,
        CASE WHEN written IS NOT NULL THEN ' AND $4 - (($4 - t.xmin::text::bigint) & 4294967295) >= $3' END,
        CASE WHEN after IS NOT NULL THEN format(' AND (%s) > (%s)', ordered, (
            SELECT string_agg(format('$5[%s]::%s', n, each.cast_to), ', ' ORDER BY n)
            FROM unnest(casts) WITH ORDINALITY AS each (cast_to, n))) END,
        ordered) USING most, newer_than, written, ahead, after;
END
$$;

-- Rows of a table of another cluster, each as JSON; those whose key is here are left alone. Of a unique key the later holder counts:
-- it has taken the key from the former one. Jobs below the watermark go to the attic.
DROP FUNCTION take_rows(text, jsonb);

CREATE FUNCTION take_rows(table_name text, rows text[]) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    taken bigint;
BEGIN
    PERFORM set_config('jobmaster.attic_mover', 'on', true);
    EXECUTE format('INSERT INTO %1$I AS t SELECT r.* FROM unnest($1) AS each, jsonb_populate_record(NULL::%1$I, each::jsonb) AS r '
                   'ON CONFLICT %2$s', table_name,
                   CASE table_name
                       WHEN 'unique_key' THEN '(handler, key) DO UPDATE SET job_id = EXCLUDED.job_id, term = EXCLUDED.term, '
                            'held_at = EXCLUDED.held_at, until = EXCLUDED.until WHERE EXCLUDED.held_at > t.held_at'
                       ELSE 'DO NOTHING' END) USING rows;
    GET DIAGNOSTICS taken = ROW_COUNT;
    PERFORM set_config('jobmaster.attic_mover', 'off', true);
    RETURN taken;
END
$$;

-- ------------------------------------------------------------ signals

-- Jobs that have just begun to wait receive what is kept for their keys. The caller has locked the keys before it inserted the jobs.
-- One that has received a signal and is due sends a notice.
CREATE FUNCTION receive_kept(waiting uuid[], keys text[], notified boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    new      record;
    kept     signal;
    group_of text;
    groups   text[] := '{}';
BEGIN
    -- In a statement of its own, after the locks: its snapshot has every signal that was kept before.
    IF NOT EXISTS (SELECT FROM signal AS s WHERE s.key = ANY (keys) AND s.kept_until > clock_timestamp()) THEN
        RETURN;
    END IF;
    FOR new IN
        SELECT j.id, j.headers FROM job AS j
        WHERE j.id = ANY (waiting) AND j.id BETWEEN waiting[1] AND waiting[cardinality(waiting)]
          AND j.state = 'WAITING' AND j.bucket_id IS NULL
        ORDER BY j.id
        FOR UPDATE
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
END
$$;

-- As in 0048; what receives kept signals is a function of its own.
CREATE OR REPLACE FUNCTION hold_waiting(new_ids uuid[], priorities smallint[], lanes text[], handlers text[], new_args bytea[],
                             new_headers bytea[], due_times bigint[], notified boolean DEFAULT true) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    accepted uuid[];
    keys     text[];
    forms    text[];
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
    PERFORM receive_kept(accepted, keys, notified);
    RETURN accepted;
END
$$;

-- Locks keys until the end of the transaction, as a job that begins to wait does: a sender comes before, or finds the job.
CREATE FUNCTION share_signal_keys(keys text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(number)
    FROM (SELECT DISTINCT signal_lock(signal_key_form(each)) AS number FROM unnest(keys) AS each ORDER BY 1) AS locks;
END
$$;

-- ------------------------------------------------------------ the mode

CREATE OR REPLACE FUNCTION refuse_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the cluster is archived: it takes no %', CASE TG_TABLE_NAME WHEN 'signal' THEN 'signals' ELSE 'jobs' END
        USING ERRCODE = 'JM001',
              HINT = CASE TG_TABLE_NAME WHEN 'signal' THEN 'send' ELSE 'submit' END
                     || ' to the cluster that took its place, or run: jobmaster cluster mode active';
END
$$;

-- As in 0064. An archived cluster takes no signals either, and with signals on their way the cluster does not become active.
CREATE OR REPLACE FUNCTION set_cluster_mode(wanted text, by_actor text, why text) RETURNS text
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
    IF wanted = 'active' AND EXISTS (SELECT FROM passed_signal) THEN
        RAISE EXCEPTION 'a move to another master was interrupted, and some signals are on their way'
            USING ERRCODE = 'JM001',
                  HINT = 'run jobmaster migrate again, with the same target; it begins with these signals';
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
        CREATE TRIGGER refuse_archived BEFORE INSERT ON signal FOR EACH STATEMENT EXECUTE FUNCTION refuse_archived();
    ELSIF former = 'archived' THEN
        DROP TRIGGER refuse_archived ON job;
        DROP TRIGGER IF EXISTS refuse_archived ON signal;  -- an earlier program made none
    END IF;
    UPDATE cluster SET mode = wanted, mode_at = clock_timestamp();
    INSERT INTO operator_log (actor, action, subject, detail)
    VALUES (by_actor, 'cluster mode', wanted, jsonb_build_object('former', former, 'reason', why));
    RETURN former;
END
$$;

-- Temporary tables of the session come last (see 0017). What replaces a function has only the settings that it names itself.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid::regprocedure FROM pg_proc p
               WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN ('submit_unique', 'hold_waiting', 'receive_kept') LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', one, current_schema());
    END LOOP;
END
$$;
