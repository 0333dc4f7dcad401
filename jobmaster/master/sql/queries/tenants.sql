-- tenants: due jobs of tenants that wait in the master, and those in flight, by tenant and lane
-- in: $1 text lane, NULL = all
-- in: $2 integer limit
-- out: name text, lane text, held bigint, in_flight bigint, oldest timestamptz (NULL: none waits)
-- move: nothing
-- fence: none
-- index: job_of_tenant, one pass over the jobs of tenants that are HELD; job_by_bucket
SELECT e.name, e.lane, sum(e.held)::bigint AS held, sum(e.in_flight)::bigint AS in_flight, min(e.oldest) AS oldest
FROM (
    SELECT tenant_of(headers) AS name, lane, count(*) AS held, 0 AS in_flight, min(due_at) AS oldest
    FROM job
    WHERE state = 'HELD' AND position('"tenant":["'::bytea IN headers) > 0
      AND due_at <= clock_timestamp() AND ($1::text IS NULL OR lane = $1)
    GROUP BY 1, 2
    UNION ALL
    SELECT tenant_of(headers), lane, 0, count(*), NULL
    FROM job
    WHERE state IN ('ASSIGNED', 'PROCESSING') AND position('"tenant":["'::bytea IN headers) > 0
      AND ($1 IS NULL OR lane = $1)
    GROUP BY 1, 2
) e
GROUP BY e.name, e.lane
ORDER BY held DESC, in_flight DESC, e.name, e.lane
LIMIT $2::integer
