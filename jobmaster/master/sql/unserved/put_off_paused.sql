-- put_off_paused: overdue jobs of paused handlers, of handlers with an open breaker, and jobs with paused tags, are due again later
-- in: $1 double precision seconds by which a job is overdue
-- in: $2 double precision seconds until it is looked at again; at the end of the pause if that is sooner
-- in: $3 integer limit
-- out: moved bigint
-- move: nothing
-- fence: FOR UPDATE SKIP LOCKED, oldest first in each lane and priority. Every onboarding reads over what it leaves in the
--        master, so without this each of them would cost all owners of the lane and priority a look for as long as the
--        pause holds. put_back gives the due time back after the pause. Tags are read before the lock: the compare-and-set on
--        state and due time leaves out a job that has moved since; the tags of a job do not change.
-- index: job_due, one probe for each group and its oldest rows, only while a handler or a tag is paused; job_pkey; put_off_pkey.
--        The tags of the 20 * $3 oldest jobs that have any are read in each group, and no more: reading them is slow
WITH RECURSIVE paused AS MATERIALIZED (
    SELECT kind, value, least(min(until), statement_timestamp() + make_interval(secs => $2::double precision)) AS away
    FROM (
        SELECT kind, value, until FROM pause
        WHERE kind IN ('handler', 'tag') AND (until IS NULL OR until > statement_timestamp())
        UNION ALL
        SELECT 'handler', h.handler, b.until FROM breaker b JOIN breaker_handler h ON h.breaker = b.name
        WHERE b.state = 'OPEN' AND (b.until IS NULL OR b.until > statement_timestamp())
    ) AS both_kinds
    GROUP BY kind, value
), lists AS MATERIALIZED (
    SELECT coalesce(array_agg(value) FILTER (WHERE kind = 'handler'), '{}') AS handlers,
           array_agg(value) FILTER (WHERE kind = 'tag') AS tags
    FROM paused
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
          AND j.handler = ANY ((SELECT handlers FROM lists)::text[])
        ORDER BY j.due_at
        LIMIT $3::integer
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT $3
), tagged AS MATERIALIZED (
    SELECT oldest.id, g.lane, g.priority, oldest.handler, oldest.due_at, t.value AS tag, t.away
    FROM groups g, LATERAL (
        SELECT j.id, j.handler, j.due_at, j.headers FROM job j
        WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
          AND j.due_at <= statement_timestamp() - make_interval(secs => $1)
          AND (SELECT tags FROM lists) IS NOT NULL
          AND position('"tags"'::bytea IN j.headers) > 0
          AND NOT j.handler = ANY ((SELECT handlers FROM lists)::text[])
        ORDER BY j.due_at
        LIMIT 20 * $3
    ) AS oldest, LATERAL (
        SELECT p.value, p.away FROM paused p
        WHERE p.kind = 'tag' AND has_tag(oldest.headers, ARRAY[p.value])
        ORDER BY p.value LIMIT 1
    ) AS t
    WHERE has_tag(oldest.headers, (SELECT tags FROM lists))
    LIMIT (SELECT $3 - count(*) FROM front)
), locked AS MATERIALIZED (
    SELECT t.* FROM tagged t JOIN job j ON j.id = t.id
    WHERE j.state = 'HELD' AND j.due_at = t.due_at
    FOR UPDATE OF j SKIP LOCKED
), away AS MATERIALIZED (
    SELECT f.id, f.lane, f.priority, f.handler, f.due_at, '' AS tag, p.away
    FROM front f JOIN paused p ON p.kind = 'handler' AND p.value = f.handler
    UNION ALL
    SELECT id, lane, priority, handler, due_at, tag, away FROM locked
), noted AS (
    INSERT INTO put_off AS p (job_id, lane, priority, handler, due_at, until, tag)
    SELECT id, lane, priority, handler, due_at, away, tag FROM away ORDER BY id
    -- As in put_off: put off before and due again, its own due time stays. The rest is of the job as it is now.
    ON CONFLICT (job_id) DO UPDATE
    SET due_at = CASE WHEN p.until = EXCLUDED.due_at THEN p.due_at ELSE EXCLUDED.due_at END, until = EXCLUDED.until,
        lane = EXCLUDED.lane, priority = EXCLUDED.priority, handler = EXCLUDED.handler, tag = EXCLUDED.tag
), moved AS (
    UPDATE job j SET due_at = a.away
    FROM away a WHERE j.id = a.id
    RETURNING j.id
)
SELECT count(*) AS moved FROM moved
