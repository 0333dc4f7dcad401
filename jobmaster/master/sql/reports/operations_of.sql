-- operations_of: acts of operators on one subject, the latest first
-- in: $1 text subject
-- in: $2 integer limit
-- out: seq bigint, at_us bigint, actor text, action text, subject text, detail text (JSON)
-- move: nothing
-- fence: none
-- index: operator_log_subject, backwards
SELECT seq, (extract(epoch FROM at) * 1000000)::bigint AS at_us, actor, action, subject, detail::text AS detail
FROM operator_log
WHERE subject = $1::text
ORDER BY seq DESC
LIMIT $2::integer
