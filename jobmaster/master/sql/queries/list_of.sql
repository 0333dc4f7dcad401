-- list_of: those of some jobs that fit a filter, newest first
-- in: $1 text filter, JSON
-- in: $2 uuid[] ids
-- in: $3 uuid lowest of them
-- in: $4 uuid highest of them
-- in: $5 boolean with arguments and result
-- out: id uuid, state text, priority smallint, lane text, handler text, token integer, bucket_id uuid, bucket_epoch bigint, attempt integer, rescues integer, cancel_requested boolean, due_at timestamptz, changed_at timestamptz, waited_us bigint, ran_us bigint, args bytea, headers bytea, result bytea, error bytea
-- move: nothing
-- fence: none: a job may have changed since its id was found; the filter is asked again
-- index: job_pkey; the bounds prune partitions. put_off_pkey: a job that is put off shows its own due time
SELECT j.id, j.state::text AS state, j.priority, j.lane, j.handler, j.token, j.bucket_id, j.bucket_epoch, j.attempt,
       j.rescues, j.cancel_requested, coalesce(p.due_at, j.due_at) AS due_at, j.changed_at, j.waited_us, j.ran_us,
       CASE WHEN $5::boolean THEN j.args END AS args, j.headers,
       CASE WHEN $5::boolean THEN j.result END AS result, j.error
FROM job_kept j
CROSS JOIN job_filter_of($1::text::jsonb) AS chosen
LEFT JOIN put_off p ON p.job_id = j.id AND p.until = j.due_at
WHERE j.id = ANY ($2::uuid[]) AND j.id BETWEEN $3::uuid AND $4::uuid
  AND job_matches(chosen, j.id, j.state, j.handler, j.lane, j.priority, coalesce(p.due_at, j.due_at), j.headers, j.error)
  AND j.headers <> deleted_headers()
ORDER BY j.id DESC
