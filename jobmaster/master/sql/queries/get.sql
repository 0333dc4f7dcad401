-- get: one job
-- in: $1 uuid job
-- out: id uuid, state text, priority smallint, lane text, handler text, token integer, bucket_id uuid, bucket_epoch bigint, attempt integer, rescues integer, cancel_requested boolean, due_at timestamptz, changed_at timestamptz, waited_us bigint, ran_us bigint, args bytea, headers bytea, result bytea, error bytea, done double precision, total double precision, progress_text text, progress_at timestamptz
-- move: nothing
-- fence: none
-- index: job_pkey, one partition; put_off_pkey: a job that is put off shows its own due time; run_progress_pkey
SELECT id, state::text AS state, j.priority, j.lane, j.handler, j.token, bucket_id, bucket_epoch, attempt, rescues,
       cancel_requested, coalesce(p.due_at, j.due_at) AS due_at, changed_at, waited_us, ran_us, args, headers, result, error,
       r.done, r.total, r.text AS progress_text, r.at AS progress_at
FROM job_kept j LEFT JOIN put_off p ON p.job_id = j.id AND p.until = j.due_at
     LEFT JOIN run_progress r ON r.job_id = j.id AND r.token = j.token
WHERE id = $1::uuid
