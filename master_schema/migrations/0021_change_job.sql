-- 0021 change job: jobs that wait get another due time, priority or lane in SQL, inside any transaction on the master's database.

-- One job that waits in the master is changed in the caller's transaction, with the checks and errors of submit. The answer says
-- whether that took effect: CHANGED; IN_BUCKET: the job has left the master for a bucket, which SQL cannot reach, and nothing was
-- changed; ALREADY_STARTED, ALREADY_ENDED: too late. Runs with the rights of its maker, as submit does.
CREATE FUNCTION change_job(job_id uuid, changes jsonb, OUT effect text, OUT state text, OUT due_at timestamptz, OUT priority text,
                           OUT lane text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    valid    constant text[] := ARRAY['at', 'after', 'priority', 'lane', 'notify'];
    labels   constant text[] := ARRAY['very_low', 'low', 'medium', 'high', 'critical'];
    opts     jsonb := jsonb_strip_nulls(coalesce(changes, '{}'));
    now_us   bigint := to_us(clock_timestamp());
    rules    submit_rule;
    due_us   bigint;
    level    smallint;
    group_of text;
    notified boolean;
    found_   job;
    wrong    text;
BEGIN
    IF jsonb_typeof(opts) <> 'object' THEN
        PERFORM submit_refuse('the changes must be an object, not ' || jsonb_typeof(opts), '{"after": 60, "priority": "high"}');
    END IF;
    SELECT each INTO wrong FROM jsonb_object_keys(opts) AS each WHERE each <> ALL (valid) ORDER BY each LIMIT 1;
    IF FOUND THEN
        PERFORM submit_refuse(format('a change has no option ''%s''', left(wrong, 80)),
                              submit_mean(wrong, valid) || 'valid are ' || array_to_string(valid, ', '));
    ELSIF opts - 'notify' = '{}' THEN
        PERFORM submit_refuse('the change sets nothing', 'give at or after, priority, or lane');
    END IF;
    notified := submit_flag(opts, 'notify', true);
    SELECT * INTO STRICT rules FROM submit_rule;
    IF opts ?| ARRAY['at', 'after'] THEN
        due_us := submit_due(opts, rules, now_us);
    END IF;
    level := submit_priority(opts -> 'priority');
    IF opts ? 'lane' THEN
        group_of := submit_lane(opts -> 'lane', NULL, rules);
    END IF;
    FOR turn IN 1..5 LOOP
        UPDATE job AS j
        SET due_at = CASE WHEN due_us > 0 THEN from_us(due_us) ELSE
                least(coalesce((SELECT p.due_at FROM put_off AS p WHERE p.job_id = j.id AND p.until = j.due_at), j.due_at),
                      CASE due_us WHEN 0 THEN clock_timestamp() END) END,
            priority = coalesce(level, j.priority),
            lane = coalesce(group_of, j.lane),
            changed_at = clock_timestamp()
        WHERE j.id = change_job.job_id AND j.state = 'HELD'
          AND (j.expires_at IS NULL OR coalesce(due_us, 0) = 0 OR from_us(due_us) < j.expires_at)
        RETURNING * INTO found_;
        IF FOUND THEN
            effect := 'CHANGED';
            INSERT INTO operator_log (actor, action, subject, detail)
            VALUES (session_user, CASE
                    WHEN level IS NULL AND group_of IS NULL THEN CASE due_us WHEN 0 THEN 'job run-now' ELSE 'job reschedule' END
                    WHEN due_us IS NULL AND group_of IS NULL THEN 'job reprioritise'
                    WHEN due_us IS NULL AND level IS NULL THEN 'job move' ELSE 'job change' END,
                found_.id::text, jsonb_strip_nulls(jsonb_build_object(
                    'due_at', CASE WHEN due_us IS NOT NULL THEN found_.due_at END, 'priority', level, 'lane', group_of)));
            IF notified AND found_.due_at <= clock_timestamp() THEN
                PERFORM pg_notify(current_schema(), found_.lane || ' ' || found_.priority);
            END IF;
            EXIT;
        END IF;
        SELECT * INTO found_ FROM job AS j WHERE j.id = change_job.job_id;
        IF NOT FOUND THEN
            PERFORM submit_refuse(format('the master has no job %s', change_job.job_id),
                                  'a job that only an agent store has is changed with `jobmaster job reschedule`, or from Python', 'P0002');
        ELSIF found_.state = 'HELD' AND due_us > 0 AND from_us(due_us) >= found_.expires_at THEN
            PERFORM submit_refuse(format('job %s expires at %s, not after the new due time: it could never start', found_.id,
                                         to_char(found_.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
                                  'give an earlier ''at'' or ''after'', or submit it anew with a later ''expires''');
        END IF;
        effect := CASE WHEN found_.state IN ('HELD', 'ASSIGNED') THEN 'IN_BUCKET'
                       WHEN found_.state IN ('PROCESSING', 'WAITING') THEN 'ALREADY_STARTED' ELSE 'ALREADY_ENDED' END;
        EXIT WHEN found_.state <> 'HELD';  -- else it came back to the master between the two statements
    END LOOP;
    state := found_.state::text;
    due_at := found_.due_at;
    priority := labels[found_.priority];
    lane := found_.lane;
END
$$;

COMMENT ON FUNCTION change_job(uuid, jsonb) IS
    'Changes one job that waits in the master, in the caller''s transaction. Changes: at, after, priority, lane, notify. The column '
    'effect is CHANGED, IN_BUCKET, ALREADY_STARTED or ALREADY_ENDED.';

-- As for submit: temporary tables of the session come last, and a role that may read the views may not therefore change jobs.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION change_job(uuid, jsonb) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE ALL ON FUNCTION change_job(uuid, jsonb) FROM PUBLIC;
