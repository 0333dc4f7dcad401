-- count_paused: due jobs in the master that pauses keep from starting
-- in: $1 integer oldest jobs of each lane and priority, and lines of jobs that are put off, that are read
-- out: jobs bigint
-- move: nothing
-- fence: none: a figure for people
-- index: nothing but the table of pauses while nothing is paused; then job_due, one probe for each group and its oldest rows;
--        put_off_cause. Tags are read only while one is paused, of jobs that have any
WITH RECURSIVE paused AS MATERIALIZED (
    SELECT kind, value FROM pause WHERE until IS NULL OR until > statement_timestamp()
), lists AS MATERIALIZED (
    SELECT coalesce(array_agg(value) FILTER (WHERE kind = 'handler'), '{}') AS handlers,
           coalesce(array_agg(value) FILTER (WHERE kind = 'lane'), '{}') AS lanes,
           coalesce(array_agg(submit_priority(to_jsonb(value))) FILTER (WHERE kind = 'priority'), '{}') AS priorities,
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
), due AS (
    SELECT count(*) AS jobs
    FROM lists l, groups g, LATERAL (
        SELECT j.handler, j.headers FROM job j
        WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority AND j.due_at <= statement_timestamp()
        ORDER BY j.due_at LIMIT $1::integer
    ) AS oldest
    WHERE g.lane = ANY (l.lanes) OR g.priority = ANY (l.priorities) OR oldest.handler = ANY (l.handlers)
       OR (l.tags IS NOT NULL AND position('"tags"'::bytea IN oldest.headers) > 0 AND has_tag(oldest.headers, l.tags))
), away AS (
    SELECT count(*) AS jobs
    FROM (
        SELECT p.job_id, p.until FROM put_off p, lists l
        WHERE EXISTS (SELECT FROM paused) AND ((p.tag = '' AND p.handler = ANY (l.handlers)) OR p.tag = ANY (l.tags))
        LIMIT $1
    ) AS p JOIN job j ON j.id = p.job_id
    WHERE j.state = 'HELD' AND j.due_at = p.until AND j.due_at > statement_timestamp()
)
SELECT due.jobs + away.jobs AS jobs FROM due, away
