-- reset: the values of the code count again; a limit that no agent has declared is removed
-- in: $1 text name
-- in: $2 text the actor
-- out: name text, removed boolean
-- move: nothing
-- fence: the row is locked; of two resets the second finds nothing set
-- index: job_limit_pkey
WITH there AS MATERIALIZED (
    SELECT l.name, l.declared_at FROM job_limit l WHERE l.name = $1::text AND l.set_at IS NOT NULL FOR UPDATE
), removed AS (
    DELETE FROM job_limit l USING there WHERE l.name = there.name AND there.declared_at IS NULL RETURNING l.name
), kept AS (
    UPDATE job_limit l
    SET set_running = NULL, set_rate = NULL, set_burst = NULL, set_at = NULL, set_by = '', set_reason = '',
        changed_at = clock_timestamp()
    FROM there
    WHERE l.name = there.name AND there.declared_at IS NOT NULL
    RETURNING l.name
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $2::text, 'limit reset', name FROM there
)
SELECT name, declared_at IS NULL AS removed FROM there
