-- waiting_ids: jobs that wait in the master or are in flight, by lane, priority and due time
-- in: $1 boolean those that are HELD
-- in: $2 boolean those that are ASSIGNED or PROCESSING
-- in: $3 text lane, NULL = any
-- in: $4 smallint priority, NULL = any
-- in: $5 bigint due at this time or later, microseconds since 1970, NULL = any; HELD alone
-- in: $6 bigint due before this time, NULL = any; HELD alone
-- in: $7 integer limit
-- out: id uuid
-- move: nothing
-- fence: none
-- index: job_due, one range of each lane and priority that has HELD jobs; with due times put_off_pkey for each of them, and
--        put_off_kind for those that are put off, which have their own due time there; job_by_bucket
WITH RECURSIVE groups AS (
    (SELECT lane, priority FROM job WHERE $1::boolean AND state = 'HELD' ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
)
SELECT waiting.id FROM (
    SELECT due.id
    FROM groups g, LATERAL (
        SELECT j.id FROM job j
        WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority
          AND j.due_at >= coalesce(from_us($5::bigint), '-infinity') AND j.due_at < coalesce(from_us($6::bigint), 'infinity')
          AND ($5 IS NULL AND $6 IS NULL OR NOT EXISTS (SELECT FROM put_off p WHERE p.job_id = j.id AND p.until = j.due_at))
        LIMIT $7::integer
    ) AS due
    WHERE ($3::text IS NULL OR g.lane = $3) AND ($4::smallint IS NULL OR g.priority = $4)
    UNION ALL
    SELECT p.job_id FROM put_off p
    WHERE $1 AND ($5 IS NOT NULL OR $6 IS NOT NULL)
      AND p.due_at >= coalesce(from_us($5), '-infinity') AND p.due_at < coalesce(from_us($6), 'infinity')
      AND ($3 IS NULL OR p.lane = $3) AND ($4 IS NULL OR p.priority = $4)
      AND (SELECT j.state = 'HELD' AND j.due_at = p.until FROM job j WHERE j.id = p.job_id)
    UNION ALL
    SELECT j.id FROM job j
    WHERE $2::boolean AND j.state IN ('ASSIGNED', 'PROCESSING') AND ($3 IS NULL OR j.lane = $3) AND ($4 IS NULL OR j.priority = $4)
) AS waiting
LIMIT $7
