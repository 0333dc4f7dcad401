-- due_groups: lanes and priorities that have jobs due soon
-- in: $1 double precision horizon, seconds from now
-- out: lane text, priority smallint
-- move: nothing
-- fence: none
-- index: job_due, one probe to jump to the next group and one to look for a due job, however many jobs it has. Both from
--        the far end: at the near end lie the dead entries of what was just onboarded, until the next vacuum
WITH RECURSIVE groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
)
SELECT lane, priority
FROM groups g
WHERE (
    SELECT true FROM job j
    WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
      AND j.due_at <= statement_timestamp() + make_interval(secs => $1::double precision)
    ORDER BY j.due_at DESC LIMIT 1
)
