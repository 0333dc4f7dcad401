-- recorded_events: transitions of buckets that some transactions recorded
-- in: $1 bigint first transaction
-- in: $2 bigint transaction that is the first one outside
-- in: $3 timestamptz from
-- in: $4 timestamptz until, itself outside
-- in: $5 uuid[] buckets, NULL = any
-- out: distance bigint (of the transaction from the first one), seq bigint, at timestamptz, bucket_id uuid,
--      from_state text, to_state text, epoch bigint, actor uuid, reason text, jobs_moved bigint, jobs_rescued bigint
-- move: nothing
-- fence: every transaction below $2 has ended when $2 was taken, so nothing can come in below it any more
-- index: none, the table is small
SELECT (xmin::text::bigint - $1::bigint) & 4294967295 AS distance,
       seq, at, bucket_id, from_state::text, to_state::text, epoch, actor, reason, jobs_moved, jobs_rescued
FROM bucket_event
WHERE ((xmin::text::bigint - $1::bigint) & 4294967295) < $2::bigint - $1::bigint
  AND at >= $3::timestamptz AND at < $4::timestamptz
  AND ($5::uuid[] IS NULL OR bucket_id = ANY ($5::uuid[]))
