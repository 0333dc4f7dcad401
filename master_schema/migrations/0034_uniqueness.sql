-- 0034 uniqueness: business keys that one job holds at a time.

-- One row for each key of a handler: the job that holds it, and how long. The row is locked before it is decided upon, so the
-- submits of one key follow each other. It is written together with the row of its job: a key without a job cannot exist.
CREATE TABLE unique_key (
    handler          text NOT NULL,
    key              text NOT NULL,
    job_id           uuid NOT NULL,
    term             text NOT NULL CHECK (term IN ('window', 'live', 'waiting')),  -- until a time, the end of the job, its start
    held_at          timestamptz NOT NULL,
    until            timestamptz,                   -- of a window: when the key is free again
    PRIMARY KEY (handler, key),
    CONSTRAINT unique_key_window_ends CHECK ((term = 'window') = (until IS NOT NULL))
);

CREATE INDEX unique_key_held_at ON unique_key (held_at);

-- A field more in the headers of a job, which are a JSON object or empty.
CREATE FUNCTION with_header(headers bytea, field text) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(headers) <= 2 THEN '\x7b'::bytea  -- {
                ELSE substring(headers FROM 1 FOR octet_length(headers) - 1) || '\x2c'::bytea  -- ,
           END || convert_to(field, 'UTF8') || '\x7d'::bytea  -- }
$$;

-- Submits one job under a unique key, in the caller's transaction. The state of the holder is read after the key is locked, by
-- a statement of its own: its snapshot shows whatever the transaction before has written.
--   passed:   a holder that was found to have started. It does not keep a key that is held until the start of a job.
--   recalls:  the caller can take a job out of a bucket, to change its due time. Without it such a job counts as started.
-- answer: created | existing | replaced | debounced; known: the job has a row already (the submit was sent before);
--   recall: the caller has to change the due time of the holder, to not later than limit_us; refused: the id is too old.
CREATE FUNCTION submit_unique(
    handler text, wanted text, own uuid, level smallint, group_of text, data bytea, headers bytea, due_us bigint,
    terms text, span_us bigint, aligned boolean, on_conflict text, passed uuid, recalls boolean,
    OUT answer text, OUT job_id uuid, OUT holder uuid, OUT limit_us bigint
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
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
            WHERE j.id = held.job_id AND j.state = 'HELD' AND j.attempt = 0 AND j.rescues = 0
              AND (j.expires_at IS NULL OR later < j.expires_at);
            IF FOUND THEN
                answer := 'debounced';
                job_id := held.job_id;
                holder := held.job_id;
                RETURN;
            END IF;
        END IF;
        IF on_conflict = 'replace' THEN
            SELECT j.state, j.attempt + j.rescues > 0 INTO there, begun FROM job AS j WHERE j.id = held.job_id FOR UPDATE;
        ELSE
            SELECT j.state, j.attempt + j.rescues > 0 INTO there, begun FROM job AS j WHERE j.id = held.job_id;
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
               ELSE NOT begun AND NOT (on_conflict = 'debounce' AND there = 'ASSIGNED')
           END) THEN
            holder := held.job_id;
            IF on_conflict <> 'replace' OR there IS NULL OR there IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN
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
