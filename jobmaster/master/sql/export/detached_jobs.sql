-- detached_jobs: a part of a detached range of jobs, as it is stored; the table's own name replaces job_detached
-- in: $1 text first place (ctid)
-- in: $2 text place beyond the last one (ctid)
-- out: id uuid, state text, priority_level smallint, lane text, handler text, due_at timestamptz, changed_at timestamptz,
--      waited_us bigint, ran_us bigint, attempt integer, rescues integer, token integer, bucket_id uuid, bucket_epoch bigint,
--      cancel_requested boolean, args text, headers text, result text, error text, expires_at timestamptz
-- move: nothing
-- fence: none, and no snapshot: a detached range has no writers, so places (ctid) do not change
-- index: none; a range of pages
SELECT id, state::text AS state, priority AS priority_level, lane, handler, due_at, changed_at, waited_us, ran_us, attempt,
       rescues, token, bucket_id, bucket_epoch, cancel_requested, convert_from(args, 'UTF8') AS args,
       convert_from(headers, 'UTF8') AS headers, convert_from(result, 'UTF8') AS result,
       convert_from(error, 'UTF8') AS error, expires_at
FROM job_detached
WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
