-- 0078 order of signal locks: a signal locks the jobs that wait for its key first, and the key second.

-- As in 0048. What ends a waiting job (a cancel, a time-out) has locked its row when a step behind it begins to wait for a signal,
-- which locks that key. A signal that had the key and waited for the row was a deadlock with it. So no row is waited for under the
-- key: one that another transaction is changing leaves the signal unfinished, and it is sent again. (Not so in the second round of
-- signal() in SQL: the transaction keeps the key.)
CREATE OR REPLACE FUNCTION send_signal(new_id uuid, new_key text, new_payload bytea, new_recipients text, keep_seconds double precision,
                                       keep_most integer, new_actor text, portion integer,
                                       OUT status text, OUT delivered bigint, OUT finished boolean, OUT kept_until timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    key_form  text := signal_key_form(new_key);
    sent      signal;
    is_new    boolean;
    waiting   uuid[];
    group_of  text;
    groups    text[];
BEGIN
    PERFORM signal_isolation();
    PERFORM FROM job AS j
    WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form
    ORDER BY j.id
    LIMIT CASE new_recipients WHEN 'one' THEN 1 ELSE portion END
    FOR UPDATE;
    PERFORM pg_advisory_xact_lock(signal_lock(key_form));
    SELECT * INTO sent FROM signal AS s WHERE s.id = new_id;
    is_new := NOT FOUND;
    IF NOT is_new THEN
        delivered := sent.delivered;
        kept_until := sent.kept_until;
        finished := true;
        IF (sent.key, sent.payload, sent.recipients) IS DISTINCT FROM (new_key, new_payload, new_recipients) THEN
            status := 'conflict';
            RETURN;
        ELSIF sent.finished THEN
            status := 'repeated';
            RETURN;
        END IF;
    ELSE
        IF keep_seconds > 0 AND (SELECT count(*) FROM (
            SELECT FROM signal AS s
            WHERE s.kept_until > clock_timestamp()
              AND NOT (new_recipients = 'all' AND s.recipients = 'all' AND s.key = new_key)
            LIMIT keep_most) AS kept) >= keep_most THEN
            status := 'full';
            delivered := 0;
            finished := true;
            RETURN;
        END IF;
        sent := ROW(new_id, new_key, new_recipients, new_payload, new_actor, clock_timestamp(), 0, false, NULL);
    END IF;
    status := 'sent';
    delivered := sent.delivered;
    kept_until := sent.kept_until;
    IF is_new AND new_recipients = 'all' AND keep_seconds > 0 THEN
        kept_until := sent.sent_at + make_interval(secs => keep_seconds);
        UPDATE signal AS s SET kept_until = NULL
        WHERE s.key = new_key AND s.recipients = 'all' AND s.kept_until IS NOT NULL;  -- the newest news for all is the news
    END IF;
    -- In a statement of its own, after the lock: its snapshot has every job that began to wait before the lock.
    waiting := ARRAY(
        SELECT j.id FROM job AS j
        WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form
        ORDER BY j.id
        LIMIT CASE new_recipients WHEN 'one' THEN 1 ELSE portion END
        FOR UPDATE SKIP LOCKED
    );
    WITH moved AS (
        UPDATE job AS j
        SET state = 'HELD', due_at = greatest(j.due_at, clock_timestamp()), expires_at = expires_of(j.headers),
            headers = signal_received(j.headers, sent), changed_at = clock_timestamp()
        WHERE j.id = ANY (waiting) AND j.id BETWEEN waiting[1] AND waiting[cardinality(waiting)]
          AND j.state = 'WAITING' AND j.bucket_id IS NULL
        RETURNING j.lane || ' ' || j.priority AS part, j.due_at
    )
    SELECT delivered + count(*), array_agg(DISTINCT part) FILTER (WHERE due_at <= clock_timestamp())
    INTO delivered, groups FROM moved;
    -- A row that another transaction is changing is in no portion; so whether more wait is looked up.
    finished := new_recipients = 'one' AND delivered > 0 OR NOT EXISTS (
        SELECT FROM job AS j
        WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form);
    IF finished AND new_recipients = 'one' AND delivered = 0 AND keep_seconds > 0 THEN
        kept_until := sent.sent_at + make_interval(secs => keep_seconds);
    END IF;
    -- The row of a signal that was left unfinished before it had reached any job is there already, and is finished now.
    IF NOT is_new OR delivered > 0 OR kept_until IS NOT NULL OR NOT finished THEN
        INSERT INTO signal AS s (id, key, recipients, payload, actor, sent_at, delivered, finished, kept_until)
        VALUES (new_id, new_key, new_recipients, new_payload, new_actor, sent.sent_at, send_signal.delivered,
                send_signal.finished, send_signal.kept_until)
        ON CONFLICT (id) DO UPDATE
        SET delivered = EXCLUDED.delivered, finished = EXCLUDED.finished, kept_until = EXCLUDED.kept_until
        WHERE s.key = EXCLUDED.key;  -- one of another key has another lock
        IF NOT FOUND THEN
            PERFORM submit_refuse(format('signal %s is sent with another key at the same time', new_id),
                                  'give each signal an id of its own', '40001');
        END IF;
    END IF;
    FOREACH group_of IN ARRAY coalesce(groups, '{}') LOOP
        PERFORM pg_notify(current_schema(), group_of);
    END LOOP;
END
$$;

-- What replaces a function has only the settings that it names itself.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION send_signal(uuid, text, bytea, text, double precision, integer, text, integer) '
                   'SET search_path = %I, pg_temp', current_schema());
END
$$;
