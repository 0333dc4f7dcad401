-- change_held: a job that waits in the master gets another due time, priority or lane
-- in: $1 uuid job
-- in: $2 bigint due time in microseconds since 1970, 0 = now, NULL = the present one
-- in: $3 smallint priority, NULL = the present one
-- in: $4 text lane, NULL = the present one
-- in: $5 text the actor
-- in: $6 text the action, for the operator log
-- out: state text, due_at timestamptz, priority smallint, lane text, handler text
-- move: HELD -> HELD
-- fence: compare-and-set on the state; a job that was onboarded meanwhile has left the master and is not touched. The token stays:
--        a HELD row is no assignment. A job whose expiry is not after the new due time is left alone. A job that is put
--        off gets its own due time back; its line in put_off is void from then on. What is overdue keeps its place when it
--        is to run now.
-- index: job_pkey, one partition; put_off_pkey
WITH changed AS (
    UPDATE job j
    SET due_at = CASE WHEN $2::bigint > 0 THEN from_us($2::bigint) ELSE
            least(coalesce((SELECT p.due_at FROM put_off p WHERE p.job_id = j.id AND p.until = j.due_at), j.due_at),
                  CASE $2::bigint WHEN 0 THEN clock_timestamp() END) END,
        priority = coalesce($3::smallint, j.priority),
        lane = coalesce($4::text, j.lane),
        changed_at = clock_timestamp()
    WHERE j.id = $1::uuid AND j.state = 'HELD'
      AND (j.expires_at IS NULL OR coalesce($2::bigint, 0) = 0 OR from_us($2::bigint) < j.expires_at)
    RETURNING j.id, j.state, j.due_at, j.priority, j.lane, j.handler
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $5::text, $6::text, id::text, json_strip_nulls(json_build_object(
        'due_at', CASE WHEN $2::bigint IS NOT NULL THEN due_at END, 'priority', $3, 'lane', $4))::jsonb
    FROM changed
)
SELECT state::text AS state, due_at, priority, lane, handler FROM changed
