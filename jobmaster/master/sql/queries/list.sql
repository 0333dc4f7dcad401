-- list: one step through the jobs of a range of ids that fit a filter, newest first
-- in: $1 text filter, JSON
-- in: $2 uuid lowest id
-- in: $3 uuid highest id
-- in: $4 integer rows that the step reads
-- in: $5 integer jobs that it returns at most
-- in: $6 boolean with arguments and result
-- out: read_to uuid (the same in every row: the lowest id that was read), id uuid (NULL in the only row: no job fits), state text, priority smallint, lane text, handler text, token integer, bucket_id uuid, bucket_epoch bigint, attempt integer, rescues integer, cancel_requested boolean, due_at timestamptz, changed_at timestamptz, waited_us bigint, ran_us bigint, args bytea, headers bytea, result bytea, error bytea
-- move: nothing
-- fence: none: a page is of one moment, the next page of a later one; ids do not change, so no job is shown twice
-- index: the primary key backwards, partition by partition, first for the id at which the step ends, then for the jobs. However
--        rare the jobs are that fit, a step reads $4 rows. put_off_pkey: a job that is put off shows its own due time
WITH step AS MATERIALIZED (
    SELECT coalesce((
        SELECT id FROM job_kept WHERE id BETWEEN $2::uuid AND $3::uuid ORDER BY id DESC OFFSET $4::integer - 1 LIMIT 1
    ), $2::uuid) AS read_to
)
SELECT step.read_to, f.id, f.state, f.priority, f.lane, f.handler, f.token, f.bucket_id, f.bucket_epoch, f.attempt, f.rescues,
       f.cancel_requested, f.due_at, f.changed_at, f.waited_us, f.ran_us, f.args, f.headers, f.result, f.error
FROM step
CROSS JOIN job_filter_of($1::text::jsonb) AS chosen
LEFT JOIN LATERAL (
    SELECT j.id, j.state::text AS state, j.priority, j.lane, j.handler, j.token, j.bucket_id, j.bucket_epoch, j.attempt,
           j.rescues, j.cancel_requested, coalesce(p.due_at, j.due_at) AS due_at, j.changed_at, j.waited_us, j.ran_us,
           CASE WHEN $6::boolean THEN j.args END AS args, j.headers,
           CASE WHEN $6::boolean THEN j.result END AS result, j.error
    FROM job_kept j
    LEFT JOIN put_off p ON p.job_id = j.id AND p.until = j.due_at
    WHERE j.id BETWEEN step.read_to AND $3::uuid
      AND job_matches(chosen, j.id, j.state, j.handler, j.lane, j.priority, coalesce(p.due_at, j.due_at), j.headers, j.error)
      AND j.headers <> deleted_headers()
    ORDER BY j.id DESC
    LIMIT $5::integer
) f ON true
ORDER BY f.id DESC
