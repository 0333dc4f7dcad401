-- list: one step through the jobs of a range of ids that fit a filter, newest first
-- in: $1 text[] states, empty = all
-- in: $2 text handler, NULL = any
-- in: $3 text lane, NULL = any
-- in: $4 smallint priority, NULL = any
-- in: $5 text tag, NULL = any
-- in: $6 uuid lowest id
-- in: $7 uuid highest id
-- in: $8 integer rows that the step reads
-- in: $9 integer jobs that it returns at most
-- in: $10 boolean with arguments and result
-- out: read_to uuid (the same in every row: the lowest id that was read), id uuid (NULL in the only row: no job fits), state text, priority smallint, lane text, handler text, token integer, bucket_id uuid, bucket_epoch bigint, attempt integer, rescues integer, cancel_requested boolean, due_at timestamptz, changed_at timestamptz, waited_us bigint, ran_us bigint, args bytea, headers bytea, result bytea, error bytea
-- move: nothing
-- fence: none: a page is of one moment, the next page of a later one; ids do not change, so no job is shown twice
-- index: the primary key backwards, partition by partition, first for the id at which the step ends, then for the jobs. However
--        rare the jobs are that fit, a step reads $8 rows. put_off_pkey: a job that is put off shows its own due time
WITH step AS MATERIALIZED (
    SELECT coalesce((
        SELECT id FROM job_kept WHERE id BETWEEN $6::uuid AND $7::uuid ORDER BY id DESC OFFSET $8::integer - 1 LIMIT 1
    ), $6::uuid) AS read_to
)
SELECT step.read_to, f.id, f.state, f.priority, f.lane, f.handler, f.token, f.bucket_id, f.bucket_epoch, f.attempt, f.rescues,
       f.cancel_requested, f.due_at, f.changed_at, f.waited_us, f.ran_us, f.args, f.headers, f.result, f.error
FROM step
LEFT JOIN LATERAL (
    SELECT j.id, j.state::text AS state, j.priority, j.lane, j.handler, j.token, j.bucket_id, j.bucket_epoch, j.attempt,
           j.rescues, j.cancel_requested,
           coalesce((SELECT p.due_at FROM put_off p WHERE p.job_id = j.id AND p.until = j.due_at), j.due_at) AS due_at,
           j.changed_at, j.waited_us, j.ran_us,
           CASE WHEN $10::boolean THEN j.args END AS args, j.headers,
           CASE WHEN $10::boolean THEN j.result END AS result, j.error
    FROM job_kept j
    WHERE j.id BETWEEN step.read_to AND $7::uuid
      AND (cardinality($1::text[]) = 0 OR j.state = ANY ($1::text[]::job_state[]))
      AND ($2::text IS NULL OR j.handler = $2::text)
      AND ($3::text IS NULL OR j.lane = $3::text)
      AND ($4::smallint IS NULL OR j.priority = $4::smallint)
      AND ($5::text IS NULL OR CASE WHEN j.headers = '' THEN false ELSE (regexp_replace(convert_from(j.headers, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json -> 'tags')::jsonb ? $5::text END)
    ORDER BY j.id DESC
    LIMIT $9::integer
) f ON true
ORDER BY f.id DESC
