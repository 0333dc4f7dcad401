-- run_now: one fire of a schedule now, by a person, beside its recurrence
-- in: $1 text schedule
-- in: $2 uuid job
-- in: $3 bigint nominal time and due time, microseconds since 1970
-- in: $4 bytea headers
-- in: $5 bigint revision, as it was read
-- in: $6 bigint next fire, as it was read, 0 = none
-- in: $7 text actor
-- out: outcome text (fired or skipped), lane text, priority smallint, previous uuid (a job that has not ended, NULL = none)
-- move: none -> HELD
-- move: HELD|WAITING -> CANCELLED
-- fence: the row of the schedule is locked, and its revision and next fire compared: earlier jobs are read in the snapshot, which
--        has none that another fire made meanwhile. The revision grows, so a fire that waits for the lock is refused for the same
--        reason. The key of schedule_fire. Unless fires may overlap, a job made ahead is withdrawn and its fire decided again at its
--        nominal time: nothing would compare it with this one. One that has begun, or whose nominal time has passed, is an
--        earlier job.
-- index: schedule_pkey, job_pkey, schedule_fire_pkey
WITH held AS MATERIALIZED (
    SELECT s.name, s.handler, s.args, s.lane, s.priority, s.overlap, s.last_jobs FROM schedule s
    WHERE s.name = $1::text AND s.revision = $5::bigint AND s.next_fire IS NOT DISTINCT FROM from_us(nullif($6::bigint, 0))
      AND s.retired_at IS NULL
    FOR UPDATE
), ahead AS MATERIALIZED (
    SELECT f.nominal, f.previous, j.id
    FROM held h JOIN schedule_fire f ON f.schedule = h.name JOIN job j ON j.id = f.job_id
    WHERE h.overlap <> 'parallel' AND f.nominal > statement_timestamp() AND f.outcome = 'fired'
      AND j.state IN ('HELD', 'ASSIGNED') AND j.attempt = 0 AND j.due_at > statement_timestamp()
), running AS MATERIALIZED (
    SELECT j.id FROM held h CROSS JOIN LATERAL unnest(h.last_jobs) AS last (id) JOIN job j ON j.id = last.id
    WHERE h.overlap <> 'parallel' AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
      AND j.id NOT IN (SELECT id FROM ahead)
    ORDER BY j.id
), checked AS MATERIALIZED (
    SELECT h.*, (SELECT min(id::text)::uuid FROM running) AS previous,
           CASE WHEN h.overlap IN ('skip', 'queue') AND EXISTS (SELECT FROM running) THEN 'skipped' ELSE 'fired' END AS outcome
    FROM held h
), superseded AS MATERIALIZED (
    SELECT j.id FROM job j
    WHERE j.id = ANY (ARRAY (SELECT r.id FROM running r JOIN checked ON overlap = 'cancel_previous'
                             UNION ALL SELECT a.id FROM ahead a JOIN checked ON outcome = 'fired'))
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
), withdrawn AS MATERIALIZED (
    SELECT a.nominal, a.previous, a.id FROM ahead a JOIN superseded s ON s.id = a.id
), unfired AS (
    UPDATE schedule_fire f SET outcome = 'withdrawn'
    FROM withdrawn w WHERE f.schedule = $1 AND f.nominal = w.nominal
), kept AS (
    UPDATE schedule s
    SET last_jobs = ($2 || ARRAY (SELECT last FROM unnest(s.last_jobs) AS last WHERE last NOT IN (SELECT id FROM withdrawn)))[1:100],
        revision = s.revision + 1,
        next_fire = CASE WHEN w.nominal IS NULL THEN s.next_fire ELSE w.nominal END,
        decide_at = CASE WHEN w.nominal IS NULL OR s.paused_at IS NOT NULL THEN s.decide_at ELSE w.nominal END,
        last_fire = CASE WHEN w.nominal IS NULL THEN s.last_fire ELSE w.previous END
    FROM checked j LEFT JOIN (SELECT nominal, previous FROM withdrawn ORDER BY nominal LIMIT 1) w ON true
    WHERE s.name = j.name AND j.outcome = 'fired' AND j.overlap <> 'parallel'
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $7::text, 'schedule run', name, jsonb_build_object('outcome', outcome) FROM checked
)
SELECT outcome, lane, priority, previous FROM checked
