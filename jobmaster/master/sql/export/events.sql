-- events: every transition of a bucket that was recorded in a span of time
-- in: $1 timestamptz from
-- in: $2 timestamptz until, itself outside
-- in: $3 uuid[] buckets, NULL = any
-- out: seq bigint, at timestamptz, bucket_id uuid, from_state text, to_state text, epoch bigint, actor uuid, reason text,
--      jobs_moved bigint, jobs_rescued bigint
-- move: nothing
-- fence: none, it reads; the snapshot of the caller's transaction
-- index: none: all of a small table, or bucket_event_bucket
SELECT seq, at, bucket_id, from_state::text, to_state::text, epoch, actor, reason, jobs_moved, jobs_rescued
FROM bucket_event
WHERE at >= $1::timestamptz AND at < $2::timestamptz
  AND ($3::uuid[] IS NULL OR bucket_id = ANY ($3::uuid[]))
