-- operations: every act of an operator that was recorded in a span of time
-- in: $1 timestamptz from
-- in: $2 timestamptz until, itself outside
-- out: seq bigint, at timestamptz, actor text, action text, subject text, detail text
-- move: nothing
-- fence: none, it reads; the snapshot of the caller's transaction
-- index: none: all of a small table
SELECT seq, at, actor, action, subject, detail::text AS detail
FROM operator_log
WHERE at >= $1::timestamptz AND at < $2::timestamptz
