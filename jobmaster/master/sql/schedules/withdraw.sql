-- withdraw: jobs whose time lies ahead are cancelled: their schedules were changed, paused or removed
-- in: $1 text[] schedules, which the caller has locked
-- in: $2 double precision[] jitter of each until now, seconds; that of the present definition counts, too
-- out: schedule text, job_id uuid, state text (after the call)
-- move: HELD -> CANCELLED
-- fence: the rows of the jobs are locked in the order of ids. One in a bucket gets a flag that its present and every later owner
--        obeys; until it is CANCELLED its fire is not decided again. One that runs is left alone. The nominal time of a job with jitter may have
--        passed: only one that has not begun is cancelled, and its fire is not decided again, as the next one is later.
-- index: schedule_fire_pkey, from the jitter before now; job_pkey
WITH ahead AS MATERIALIZED (
    SELECT f.schedule, f.nominal, j.id
    FROM unnest($1::text[], $2::double precision[]) AS w (name, jitter)
    JOIN schedule s ON s.name = w.name
    JOIN schedule_fire f ON f.schedule = s.name AND f.nominal > statement_timestamp() - make_interval(secs =>
        greatest(w.jitter, (convert_from(s.definition, 'UTF8')::json ->> 'jitter_seconds')::double precision))
    JOIN job j ON j.id = f.job_id
    WHERE f.outcome = 'fired' AND j.state IN ('HELD', 'ASSIGNED')
      AND (f.nominal > statement_timestamp() OR (j.due_at > statement_timestamp() AND j.attempt = 0 AND NOT f.manual))
    ORDER BY j.id
    FOR UPDATE OF j
), cancelled AS (
    UPDATE job j
    SET state = CASE j.state WHEN 'HELD' THEN 'CANCELLED'::job_state ELSE j.state END,
        changed_at = CASE j.state WHEN 'HELD' THEN clock_timestamp() ELSE j.changed_at END,
        expires_at = NULL,
        cancel_requested = true
    FROM ahead a WHERE j.id = a.id
    RETURNING j.id, j.state
), noted AS (
    UPDATE schedule_fire f SET outcome = 'withdrawn'
    FROM ahead a WHERE f.schedule = a.schedule AND f.nominal = a.nominal
), freed AS (
    UPDATE schedule s
    SET last_jobs = ARRAY (SELECT last FROM unnest(s.last_jobs) AS last WHERE last NOT IN (SELECT id FROM ahead))
    WHERE s.name IN (SELECT schedule FROM ahead)
)
SELECT a.schedule, a.id AS job_id, c.state::text AS state FROM ahead a JOIN cancelled c ON c.id = a.id
