-- failures: one step through the jobs of a range of ids that fit a filter and have an error: how many of each kind
-- in: $1 text filter, JSON
-- in: $2 uuid lowest id
-- in: $3 uuid highest id
-- in: $4 integer rows that the step reads
-- out: read_to uuid (the same in every row: the lowest id that was read), fingerprint text (NULL in the only row: no job fits), handler text, error_type text, line text, jobs bigint, first_at timestamptz, last_at timestamptz, sample uuid (the newest)
-- move: nothing
-- fence: none: each step is of its own moment
-- index: as queries/list
WITH step AS MATERIALIZED (
    SELECT coalesce((
        SELECT id FROM job_kept WHERE id BETWEEN $2::uuid AND $3::uuid ORDER BY id DESC OFFSET $4::integer - 1 LIMIT 1
    ), $2::uuid) AS read_to
)
SELECT step.read_to,
       -- The line of a line is the line itself, so this is the fingerprint of each of the errors.
       error_fingerprint(found.handler, convert_to(json_build_object('type', found.error_type, 'message', found.line)::text, 'UTF8'))
           AS fingerprint,
       found.handler, found.error_type, found.line, found.jobs, found.first_at, found.last_at, found.sample
FROM step
LEFT JOIN LATERAL (
    SELECT read.handler, read.error_type, error_line(read.message) AS line, count(*) AS jobs, min(read.changed_at) AS first_at,
           max(read.changed_at) AS last_at, (array_agg(read.id ORDER BY read.id DESC))[1] AS sample
    FROM (
        SELECT j.id, j.handler, j.changed_at, said.type AS error_type, said.message
        FROM job_kept j
        CROSS JOIN job_filter_of($1::text::jsonb) AS chosen
        CROSS JOIN LATERAL json_to_record(stored_json(j.error)) AS said (type text, message text)
        WHERE j.id BETWEEN step.read_to AND $3::uuid AND j.error IS NOT NULL AND j.headers <> deleted_headers()
          AND job_matches(chosen, j.id, j.state, j.handler, j.lane, j.priority, j.due_at, j.headers, j.error)
        OFFSET 0  -- each error is decoded once
    ) AS read
    GROUP BY 1, 2, 3
) AS found ON true
