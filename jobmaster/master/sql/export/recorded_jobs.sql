-- recorded_jobs: jobs of a range of ids that ended in some transactions
-- in: $1 bigint first transaction
-- in: $2 bigint transaction that is the first one outside
-- in: $3 timestamptz no row of these transactions was changed before it
-- in: $4 uuid lowest id
-- in: $5 uuid highest id, itself outside
-- in: $6 text[] states, NULL = any
-- in: $7 text[] handlers, NULL = any
-- in: $8 text[] lanes, NULL = any
-- in: $9 text[] priorities, NULL = any
-- in: $10 uuid[] buckets, NULL = any
-- out: distance bigint (of the transaction from the first one), id uuid, state text, priority text,
--      priority_level smallint, lane text, handler text, created_at timestamptz, due_at timestamptz,
--      started_at timestamptz, ended_at timestamptz, changed_at timestamptz, waited_us bigint, ran_us bigint,
--      attempt integer, rescues integer, token integer, bucket_id uuid, bucket_epoch bigint, cancel_requested boolean,
--      args text, headers text, result text, error text
-- move: nothing
-- fence: every transaction below $2 has ended when $2 was taken, so nothing can come in below it any more
--        A row that was moved bears the transaction that recorded it, so it does not come again. xmin has 32 bits: the time keeps
--        out rows that an earlier turn of the counter has recorded
-- index: none: xmin has none, and a column with one would cost every outcome more than this scan costs a poll
SELECT distance,
       id, state::text AS state, priority_label(priority) AS priority, priority AS priority_level, lane, handler,
       uuid_moment(id) AS created_at, due_at,
       CASE WHEN state IN ('SUCCEEDED', 'FAILED') THEN changed_at - ran_us * interval '1 microsecond' END AS started_at,
       changed_at AS ended_at, changed_at, waited_us, ran_us, attempt, rescues, token, bucket_id, bucket_epoch,
       cancel_requested, convert_from(args, 'UTF8') AS args,
       CASE WHEN length(headers) > 0 THEN convert_from(headers, 'UTF8') ELSE '{}' END AS headers,
       convert_from(result, 'UTF8') AS result, convert_from(error, 'UTF8') AS error
FROM (
    SELECT coalesce(recorded_xid - $1::bigint, (xmin::text::bigint - $1) & 4294967295) AS distance, * FROM job
    WHERE changed_at >= $3::timestamptz OR recorded_xid IS NOT NULL
    UNION ALL
    SELECT coalesce(recorded_xid - $1, (xmin::text::bigint - $1) & 4294967295) AS distance, * FROM job_detached
    WHERE changed_at >= $3 OR recorded_xid IS NOT NULL
) AS kept
WHERE state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
  AND distance >= 0 AND distance < $2::bigint - $1
  AND id >= $4::uuid AND id < $5::uuid
  AND ($6::text[] IS NULL OR state::text = ANY ($6::text[]))
  AND ($7::text[] IS NULL OR handler = ANY ($7::text[]))
  AND ($8::text[] IS NULL OR lane = ANY ($8::text[]))
  AND ($9::text[] IS NULL OR priority_label(priority) = ANY ($9::text[]))
  AND ($10::uuid[] IS NULL OR bucket_id = ANY ($10::uuid[]))
