-- recorded_events: transitions of buckets that some transactions recorded
-- in: $1 bigint first transaction
-- in: $2 bigint transaction that is the first one outside
-- in: $3 timestamptz no row of these transactions is of an earlier time
-- in: $4 timestamptz from
-- in: $5 timestamptz until, itself outside
-- in: $6 uuid[] buckets, NULL = any
-- out: distance bigint (of the transaction from the first one), seq bigint, at timestamptz, bucket_id uuid,
--      from_state text, to_state text, epoch bigint, actor uuid, reason text, jobs_moved bigint, jobs_rescued bigint
-- move: nothing
-- fence: every transaction below $2 has ended when $2 was taken, so nothing can come in below it any more
--        The time: see recorded_jobs
-- index: none, the table is small
SELECT (xmin::text::bigint - $1::bigint) & 4294967295 AS distance,
       seq, at, bucket_id, from_state::text, to_state::text, epoch, actor, reason, jobs_moved, jobs_rescued
FROM bucket_event
WHERE ((xmin::text::bigint - $1::bigint) & 4294967295) < $2::bigint - $1::bigint
  AND at >= greatest($3::timestamptz, $4::timestamptz) AND at < $5::timestamptz
  AND ($6::uuid[] IS NULL OR bucket_id = ANY ($6::uuid[]))
