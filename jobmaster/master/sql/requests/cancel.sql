-- cancel: a job that waits is cancelled; one in flight gets a flag that its present and every later owner obeys
-- in: $1 uuid job
-- in: $2 text the actor
-- out: state text (after the call)
-- move: HELD|WAITING -> CANCELLED
-- fence: compare-and-set on the state; a final row is left alone (no row comes back)
-- index: job_pkey, one partition
WITH requested AS (
    UPDATE job
    SET state = CASE WHEN state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE state END,
        changed_at = CASE WHEN state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE changed_at END,
        expires_at = NULL,
        cancel_requested = true
    WHERE id = $1::uuid AND state IN ('HELD', 'WAITING', 'ASSIGNED', 'PROCESSING')
    RETURNING id, state
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $2::text, 'job cancel', id::text FROM requested
)
SELECT state::text AS state FROM requested
