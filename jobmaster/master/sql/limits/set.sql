-- set: an operator's values of a limit, which stand over those of the code until they are reset
-- in: $1 text name
-- in: $2 integer jobs that may run at once, NULL = as declared
-- in: $3 double precision starts a second, NULL = as declared
-- in: $4 double precision starts that may come at once after a pause, NULL = as declared, or those of one second with a rate
-- in: $5 text the actor
-- in: $6 text reason
-- out: name text
-- move: nothing
-- fence: one row; the last one to set counts. Admissions read it after their lock: every one that begins later obeys.
-- index: job_limit_pkey
WITH put AS (
    INSERT INTO job_limit AS l (name, set_running, set_rate, set_burst, set_at, set_by, set_reason)
    VALUES ($1::text, $2::integer, $3::double precision, $4::double precision, clock_timestamp(), $5::text, $6::text)
    ON CONFLICT (name) DO UPDATE
    SET set_running = EXCLUDED.set_running, set_rate = EXCLUDED.set_rate, set_burst = EXCLUDED.set_burst,
        set_at = EXCLUDED.set_at, set_by = EXCLUDED.set_by, set_reason = EXCLUDED.set_reason, changed_at = clock_timestamp()
    RETURNING l.name
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $5, 'limit set', name, jsonb_build_object('reason', $6, 'running', $2, 'rate', $3, 'burst', $4) FROM put
)
SELECT name FROM put
