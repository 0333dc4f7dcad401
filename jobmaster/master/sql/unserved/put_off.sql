-- put_off: overdue jobs of handlers that no owner of a matching bucket has are due again later
-- in: $1 text lane
-- in: $2 smallint priority
-- in: $3 text[] handlers
-- in: $4 double precision seconds by which a job is overdue
-- in: $5 double precision seconds until it is looked at again
-- in: $6 integer limit
-- out: moved bigint
-- move: nothing
-- fence: FOR UPDATE SKIP LOCKED, oldest first: one that is being onboarded has an agent. Every onboarding reads over
--        what it cannot take, so without this each of them would cost all owners of the lane and priority a look for ever.
-- index: job_due in order; job_pkey; put_off_pkey
WITH front AS MATERIALIZED (
    SELECT id, handler, due_at FROM job
    WHERE state = 'HELD' AND lane = $1::text AND priority = $2::smallint AND handler = ANY ($3::text[])
      AND due_at <= statement_timestamp() - make_interval(secs => $4::double precision)
    ORDER BY due_at
    LIMIT $6::integer
    FOR UPDATE SKIP LOCKED
), noted AS (
    INSERT INTO put_off AS p (job_id, lane, priority, handler, due_at, until)
    SELECT id, $1, $2, handler, due_at, statement_timestamp() + make_interval(secs => $5::double precision)
    FROM front ORDER BY id
    -- Put off before and due again: its own due time stays. A void line is of an earlier life of the job, maybe in another lane.
    ON CONFLICT (job_id) DO UPDATE
    SET due_at = CASE WHEN p.until = EXCLUDED.due_at THEN p.due_at ELSE EXCLUDED.due_at END, until = EXCLUDED.until,
        lane = EXCLUDED.lane, priority = EXCLUDED.priority, handler = EXCLUDED.handler, tag = ''
), moved AS (
    UPDATE job j SET due_at = statement_timestamp() + make_interval(secs => $5)
    FROM front f WHERE j.id = f.id
    RETURNING j.id
)
SELECT count(*) AS moved FROM moved
