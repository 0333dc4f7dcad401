-- jobs: jobs by filter, newest first, without their payload
-- in: $1 text[] states, NULL = all, $2 text lane, $3 smallint priority, $4 text handler, $5 text tag (each NULL: any), $6
--      uuid first id, $7 uuid last id, $8 int rows
-- out: id uuid, state text, priority smallint, lane text, handler text, token integer, attempt integer, rescues integer,
--      bucket_id uuid, bucket_epoch bigint, cancel_requested boolean, due_us bigint, changed_us bigint, waited_us bigint,
--      ran_us bigint, headers bytea, error bytea
-- move: nothing
-- fence: none
-- index: the primary key backwards, partition by partition, until there are $8 rows; a rare filter reads far: bound it by
--      ids. A job that is put off shows its own due time (put_off_pkey)
SELECT id, state::text AS state, j.priority, j.lane, j.handler, token, attempt, rescues, bucket_id, bucket_epoch,
       cancel_requested,
       (extract(epoch FROM coalesce(
           (SELECT p.due_at FROM put_off p WHERE p.job_id = j.id AND p.until = j.due_at), j.due_at)) * 1000000)::bigint AS due_us,
       (extract(epoch FROM changed_at) * 1000000)::bigint AS changed_us,
       waited_us, ran_us, headers, error
FROM job_kept j
WHERE id BETWEEN $6::uuid AND $7::uuid
  AND ($1::text[] IS NULL OR state = ANY ($1::text[]::job_state[]))
  AND ($2::text IS NULL OR j.lane = $2::text)
  AND ($3::smallint IS NULL OR j.priority = $3::smallint)
  AND ($4::text IS NULL OR j.handler = $4::text)
  AND ($5::text IS NULL OR CASE WHEN headers = '' THEN false ELSE (regexp_replace(convert_from(headers, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json -> 'tags')::jsonb ? $5::text END)
ORDER BY id DESC
LIMIT $8::int
