-- 0045 next steps: the agent that records the end of a step gets the next one with the answer, assigned to its bucket.

-- As in 0044. A call of finish_steps collects the jobs, in a setting of its transaction, and decides itself who is notified.
CREATE OR REPLACE FUNCTION workflow_begun(made uuid, lane text, priority smallint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    collected text := current_setting('jobmaster.begun_steps', true);
BEGIN
    IF collected LIKE '+%' THEN
        PERFORM set_config('jobmaster.begun_steps', collected || ',' || made, true);
    ELSE
        PERFORM pg_notify(current_schema(), lane || ' ' || priority);
    END IF;
END
$$;

-- Outcomes as outcomes/record_final writes them; then as many of the jobs that follow as steps have ended become ASSIGNED to the
-- bucket, if its owner may run them. The others are HELD, and the leader is notified. more: the owner may run some of these, too.
CREATE FUNCTION finish_steps(
    ids uuid[], ends text[], priorities smallint[], lanes text[], handlers text[], tokens integer[], buckets uuid[], epochs bigint[],
    attempts integer[], rescue_counts integer[], dues_us bigint[], waits_us bigint[], runs_us bigint[], all_args bytea[],
    all_headers bytea[], results bytea[], errors bytea[],
    here uuid, here_epoch bigint, here_owner uuid, here_lane text, here_priority smallint, served text[], paused text[], words text[]
) RETURNS TABLE (accepted uuid[], more boolean, id uuid, token integer, handler text, args bytea, due_at timestamptz, headers bytea,
                 attempt integer, rescues integer) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    begun uuid[];
    taken uuid[];
BEGIN
    PERFORM set_config('jobmaster.begun_steps', '+', true);
    WITH written AS (
        INSERT INTO job AS j (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_at,
                              waited_us, ran_us, args, headers, result, error)
        SELECT n.id, n.state::job_state, n.priority, n.lane, n.handler, n.token, n.bucket_id, n.bucket_epoch, n.attempt, n.rescues,
               from_us(nullif(n.due_us, 0)), n.waited_us, n.ran_us, n.args, n.headers, n.result, n.error
        FROM unnest(ids, ends, priorities, lanes, handlers, tokens, buckets, epochs, attempts, rescue_counts, dues_us, waits_us, runs_us,
                    all_args, all_headers, results, errors)
             AS n (id, state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, due_us, waited_us, ran_us,
                   args, headers, result, error)
        ORDER BY n.id
        ON CONFLICT (id) DO UPDATE
        SET state = EXCLUDED.state, attempt = EXCLUDED.attempt, rescues = EXCLUDED.rescues, expires_at = NULL,
            changed_at = clock_timestamp(),
            waited_us = EXCLUDED.waited_us, ran_us = EXCLUDED.ran_us, result = EXCLUDED.result, error = EXCLUDED.error
        WHERE j.token = EXCLUDED.token
          AND j.bucket_id = EXCLUDED.bucket_id
          AND j.bucket_epoch = EXCLUDED.bucket_epoch
          AND j.state IN ('ASSIGNED', 'PROCESSING')
        RETURNING j.id
    )
    SELECT coalesce(array_agg(w.id), '{}') INTO accepted FROM written w;
    begun := ARRAY(SELECT b.made::uuid
                   FROM unnest(string_to_array(substr(current_setting('jobmaster.begun_steps'), 3), ',')) AS b (made) ORDER BY 1);
    PERFORM set_config('jobmaster.begun_steps', '', true);
    taken := ARRAY(
        SELECT j.id FROM job j
        WHERE j.id = ANY (begun) AND j.id BETWEEN begun[1] AND begun[cardinality(begun)]
          AND j.state = 'HELD' AND j.lane = here_lane AND j.priority = here_priority AND j.due_at <= clock_timestamp()
          AND NOT j.cancel_requested
          AND (served IS NULL OR j.handler = ANY (served))
          AND (paused IS NULL OR NOT has_tag(j.headers, paused))
          AND (words IS NULL OR required_words(j.headers) <@ words)
        ORDER BY j.id);
    more := cardinality(taken) > cardinality(accepted);
    taken := taken[1:cardinality(accepted)];
    -- Rule C. A bucket that is being taken is not waited for: this transaction has locked jobs.
    PERFORM FROM bucket b
    WHERE b.id = here AND b.epoch = here_epoch AND b.owner = here_owner AND b.state = 'ACTIVE' AND taken <> '{}'
    FOR SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        taken := '{}';
    END IF;
    PERFORM pg_notify(current_schema(), g.lane || ' ' || g.priority)
    FROM (SELECT DISTINCT j.lane, j.priority FROM job j
          WHERE j.id = ANY (begun) AND j.id BETWEEN begun[1] AND begun[cardinality(begun)] AND j.id <> ALL (taken)
            AND j.state = 'HELD' AND j.due_at <= clock_timestamp()) AS g;
    RETURN QUERY
        UPDATE job j
        SET state = 'ASSIGNED', token = j.token + 1, bucket_id = here, bucket_epoch = here_epoch, expires_at = NULL,
            changed_at = clock_timestamp()
        WHERE j.id = ANY (taken) AND j.id BETWEEN taken[1] AND taken[cardinality(taken)] AND j.state = 'HELD'
        RETURNING accepted, more, j.id, j.token, j.handler, j.args, j.due_at, j.headers, j.attempt, j.rescues;
    IF NOT FOUND THEN
        RETURN NEXT;
    END IF;
END
$$;
