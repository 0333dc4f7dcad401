-- put_off_paused: overdue jobs of paused handlers are due again later
-- in: $1 double precision seconds by which a job is overdue
-- in: $2 double precision seconds until it is looked at again; at the end of the pause if that is sooner
-- in: $3 integer limit
-- out: moved bigint
-- move: nothing
-- fence: FOR UPDATE SKIP LOCKED, oldest first in each lane and priority. Every onboarding reads over what it leaves in the
--        master, so without this each of them would cost all owners of the lane and priority a look for as long as the
--        pause holds. put_back gives the due time back after the pause.
-- index: job_due, one probe for each group and its oldest rows, only while a handler is paused; job_pkey; put_off_pkey
WITH RECURSIVE paused AS MATERIALIZED (
    SELECT value AS handler,
           least(until, statement_timestamp() + make_interval(secs => $2::double precision)) AS away
    FROM pause
    WHERE kind = 'handler' AND (until IS NULL OR until > statement_timestamp())
), groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' AND EXISTS (SELECT FROM paused)
     ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
), front AS MATERIALIZED (
    SELECT oldest.id, g.lane, g.priority, oldest.handler, oldest.due_at
    FROM groups g, LATERAL (
        SELECT j.id, j.handler, j.due_at FROM job j
        WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
          AND j.due_at <= statement_timestamp() - make_interval(secs => $1::double precision)
          AND j.handler = ANY (ARRAY (SELECT handler FROM paused))
        ORDER BY j.due_at
        LIMIT $3::integer
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT $3
), away AS MATERIALIZED (
    SELECT f.*, p.away FROM front f JOIN paused p ON p.handler = f.handler
), noted AS (
    INSERT INTO put_off AS p (job_id, lane, priority, handler, due_at, until)
    SELECT id, lane, priority, handler, due_at, away FROM away ORDER BY id
    -- As in put_off: put off before and due again, its own due time stays.
    ON CONFLICT (job_id) DO UPDATE
    SET due_at = CASE WHEN p.until = EXCLUDED.due_at THEN p.due_at ELSE EXCLUDED.due_at END, until = EXCLUDED.until
), moved AS (
    UPDATE job j SET due_at = a.away
    FROM away a WHERE j.id = a.id
    RETURNING j.id
)
SELECT count(*) AS moved FROM moved
