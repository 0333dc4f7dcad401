-- 0028 signals: jobs that wait for a signal before they run, and signals that are kept for jobs to come.

-- A signal that reached a job, or that is kept. A signal without an effect leaves no row.
CREATE TABLE signal (
    id               uuid PRIMARY KEY,              -- of the sender: the same id again delivers nothing new
    key              text NOT NULL,
    recipients       text NOT NULL CHECK (recipients IN ('all', 'one')),
    payload          bytea NOT NULL,                -- JSON
    actor            text NOT NULL,
    sent_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered        bigint NOT NULL,               -- jobs that waited for it
    finished         boolean NOT NULL,              -- false: more jobs may wait for it than one portion has reached
    kept_until       timestamptz                    -- NULL: not kept (any more)
);

CREATE INDEX signal_kept ON signal (key, sent_at) WHERE kept_until IS NOT NULL;
CREATE INDEX signal_kept_until ON signal (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX signal_unfinished ON signal (sent_at) WHERE NOT finished;
CREATE INDEX signal_sent ON signal (sent_at);

-- The key of the signal that a job waits for, from its headers, in the form of encode(..., 'escape'). Nearly all headers lack the
-- words. Not through json, which refuses the \u0000 that tags may hold; inside a string the quotes would be escaped. A key has no
-- quote and no backslash.
CREATE FUNCTION signal_key(headers bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN position('"signal":{"key":"'::bytea IN headers) > 0
                THEN substring(encode(headers, 'escape') FROM '"signal":\{"key":"([^"]*)"') END
$$;

-- A key in that form.
CREATE FUNCTION signal_key_form(key text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT encode(convert_to(key, 'UTF8'), 'escape')
$$;

-- How long a job waits for its signal, in seconds; NULL: without an end of its own.
CREATE FUNCTION signal_seconds(headers bytea) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT substring(encode(headers, 'escape') FROM '"signal":\{"key":"[^"]*","seconds":([0-9.eE+-]+)')::double precision
$$;

-- Whether a job runs when no signal has come in time; otherwise it is EXPIRED.
CREATE FUNCTION signal_runs(headers bytea) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT encode(headers, 'escape') ~ '"signal":\{"key":"[^"]*"(,"seconds":[0-9.eE+-]+)?,"run":true'
$$;

-- The headers of a job that has received a signal. The payload is a text in them, so no search of headers finds a field in it.
CREATE FUNCTION signal_received(headers bytea, signal signal) RETURNS bytea LANGUAGE sql STABLE STRICT AS $$
    SELECT substring(headers FROM 1 FOR octet_length(headers) - 1)
           || convert_to(',"received":' || json_build_object('id', signal.id, 'payload', convert_from(signal.payload, 'UTF8'),
                                                             'sent_us', to_us(signal.sent_at)) || '}', 'UTF8')
$$;

-- The number of the lock of a key: senders hold it alone, jobs that begin to wait share it. So a signal and a job of its key
-- never miss each other: one of the two sees the other's row.
CREATE FUNCTION signal_lock(key_form text) RETURNS bigint LANGUAGE sql STABLE STRICT AS $$
    SELECT hashtextextended(current_schema() || ' signal ' || key_form, 28)
$$;

-- First rows of jobs that wait for a signal. One that finds a kept signal has received it at once, and is HELD.
CREATE FUNCTION hold_waiting(new_ids uuid[], priorities smallint[], lanes text[], handlers text[], new_args bytea[],
                             new_headers bytea[], due_times bigint[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    accepted uuid[] := '{}';
    new      record;
    kept     signal;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(number)
    FROM (SELECT DISTINCT signal_lock(signal_key(each)) AS number FROM unnest(new_headers) AS each ORDER BY 1) AS locks;
    FOR new IN
        SELECT * FROM unnest(new_ids, priorities, lanes, handlers, new_args, new_headers, due_times)
                      AS each (id, priority, lane, handler, args, headers, due_us)
        ORDER BY each.id
    LOOP
        INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
        VALUES (new.id, 'WAITING', new.priority, new.lane, new.handler, 1,
                coalesce(from_us(nullif(new.due_us, 0)), clock_timestamp()),
                least(expires_of(new.headers), clock_timestamp() + make_interval(secs => signal_seconds(new.headers))),
                new.args, new.headers)
        ON CONFLICT (id) DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        accepted := array_append(accepted, new.id);
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
            WHERE j.id = new.id;
        END IF;
    END LOOP;
    RETURN accepted;
END
$$;

-- One signal, or the next portion of one, to the jobs that wait for its key. status: 'sent'; 'repeated': the id was sent before,
-- and the answer is that of then; 'conflict': it was sent before with another key, payload or recipients; 'full': too many signals
-- are kept. The last two have changed nothing.
CREATE FUNCTION send_signal(new_id uuid, new_key text, new_payload bytea, new_recipients text, keep_seconds double precision,
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
            SELECT FROM signal AS s WHERE s.kept_until IS NOT NULL LIMIT keep_most) AS kept) >= keep_most THEN
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
    LOOP
        -- In a statement of its own, after the lock: its snapshot has every job that began to wait before the lock.
        waiting := ARRAY(
            SELECT j.id FROM job AS j
            WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form
            ORDER BY j.id
            LIMIT CASE new_recipients WHEN 'one' THEN 1 ELSE portion END
            FOR UPDATE
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
        -- A row that was changed while this waited for its lock is in no portion; so whether more wait is looked up.
        finished := new_recipients = 'one' AND delivered > 0 OR NOT EXISTS (
            SELECT FROM job AS j
            WHERE j.state = 'WAITING' AND j.bucket_id IS NULL AND signal_key(j.headers) = key_form);
        EXIT WHEN finished OR cardinality(waiting) > 0;
    END LOOP;
    IF new_recipients = 'one' AND delivered = 0 AND keep_seconds > 0 THEN
        kept_until := sent.sent_at + make_interval(secs => keep_seconds);
    END IF;
    IF delivered > 0 OR kept_until IS NOT NULL OR NOT finished THEN
        INSERT INTO signal AS s (id, key, recipients, payload, actor, sent_at, delivered, finished, kept_until)
        VALUES (new_id, new_key, new_recipients, new_payload, new_actor, sent.sent_at, send_signal.delivered,
                send_signal.finished, send_signal.kept_until)
        ON CONFLICT (id) DO UPDATE
        SET delivered = EXCLUDED.delivered, finished = EXCLUDED.finished, kept_until = EXCLUDED.kept_until;
    END IF;
    FOREACH group_of IN ARRAY coalesce(groups, '{}') LOOP
        PERFORM pg_notify(current_schema(), group_of);
    END LOOP;
END
$$;

-- Temporary tables of the session come last (see 0017), and the caller's search path does not matter.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION hold_waiting(uuid[], smallint[], text[], text[], bytea[], bytea[], bigint[]) '
                   'SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION send_signal(uuid, text, bytea, text, double precision, integer, text, integer) '
                   'SET search_path = %I, pg_temp', current_schema());
END
$$;
