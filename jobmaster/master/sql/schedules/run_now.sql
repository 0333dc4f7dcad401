-- run_now: one fire of a schedule now, by a person, beside its recurrence
-- in: $1 text schedule
-- in: $2 uuid job
-- in: $3 bigint nominal time and due time, microseconds since 1970
-- in: $4 bytea headers
-- in: $5 bigint revision, as it was read
-- in: $6 text actor
-- out: outcome text (fired or skipped), lane text, priority smallint, previous uuid (a job that has not ended, NULL = none)
-- move: none -> HELD
-- move: HELD|WAITING -> CANCELLED
-- fence: the row of the schedule is locked and its revision compared; the key of schedule_fire. A job whose time lies ahead has
--        not begun and is no hindrance.
-- index: schedule_pkey, job_pkey, schedule_fire_pkey
WITH held AS MATERIALIZED (
    SELECT s.name, s.handler, s.args, s.lane, s.priority, s.overlap, s.last_jobs FROM schedule s
    WHERE s.name = $1::text AND s.revision = $5::bigint AND s.retired_at IS NULL
    FOR UPDATE
), running AS MATERIALIZED (
    SELECT j.id FROM held h CROSS JOIN LATERAL unnest(h.last_jobs) AS last (id) JOIN job j ON j.id = last.id
    WHERE h.overlap <> 'parallel' AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
      AND (j.due_at IS NULL OR j.due_at <= statement_timestamp())
    ORDER BY j.id
), checked AS MATERIALIZED (
    SELECT h.*, (SELECT min(id::text)::uuid FROM running) AS previous,
           CASE WHEN h.overlap IN ('skip', 'queue') AND EXISTS (SELECT FROM running) THEN 'skipped' ELSE 'fired' END AS outcome
    FROM held h
), superseded AS MATERIALIZED (
    SELECT j.id FROM job j
    WHERE j.id IN (SELECT id FROM running) AND EXISTS (SELECT FROM checked WHERE overlap = 'cancel_previous')
      AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
    ORDER BY j.id
    FOR UPDATE
), cancelled AS (
    UPDATE job j
    SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
        changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
        expires_at = NULL,
        cancel_requested = true
    FROM superseded s WHERE j.id = s.id
), made AS (
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    SELECT $2::uuid, 'HELD', priority, lane, handler, 1, from_us($3::bigint), expires_of($4::bytea), args, $4
    FROM checked WHERE outcome = 'fired'
), noted AS (
    INSERT INTO schedule_fire (schedule, nominal, outcome, job_id, manual)
    SELECT name, from_us($3), outcome, CASE outcome WHEN 'fired' THEN $2 END, true FROM checked
), kept AS (
    UPDATE schedule s SET last_jobs = ($2 || s.last_jobs)[1:100]
    FROM checked j WHERE s.name = j.name AND j.outcome = 'fired' AND j.overlap <> 'parallel'
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $6::text, 'schedule run', name, jsonb_build_object('outcome', outcome) FROM checked
)
SELECT outcome, lane, priority, previous FROM checked
