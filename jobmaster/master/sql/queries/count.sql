-- count: one step through the jobs of a range of ids: how many fit a filter
-- in: $1 text filter, JSON
-- in: $2 uuid lowest id
-- in: $3 uuid highest id
-- in: $4 integer rows that the step reads
-- in: $5 integer jobs that it counts at most
-- out: read_to uuid (the lowest id that was read), jobs integer
-- move: nothing
-- fence: none: each step is of its own moment
-- index: as queries/list. The filter is joined, so its fields are columns; a list, which must keep the order of the key, takes
--        them out of one value for each row
WITH step AS MATERIALIZED (
    SELECT coalesce((
        SELECT id FROM job_kept WHERE id BETWEEN $2::uuid AND $3::uuid ORDER BY id DESC OFFSET $4::integer - 1 LIMIT 1
    ), $2::uuid) AS read_to
)
SELECT step.read_to, found.jobs
FROM step
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS jobs FROM (
        SELECT FROM job_kept j
        CROSS JOIN job_filter_of($1::text::jsonb) AS chosen
        LEFT JOIN put_off p ON p.job_id = j.id AND p.until = j.due_at
        WHERE j.id BETWEEN step.read_to AND $3::uuid
          AND job_matches(chosen, j.id, j.state, j.handler, j.lane, j.priority, coalesce(p.due_at, j.due_at), j.headers, j.error)
          AND j.headers <> deleted_headers()
        LIMIT $5::integer
    ) AS fitting
) AS found
