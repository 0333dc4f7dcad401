-- operations: acts of operators, the latest first
-- in: $1 text beginning of the subject, NULL = any
-- in: $2 text actor, or the part of it before the @, NULL = any
-- in: $3 double precision seconds back from now, NULL = all
-- in: $4 integer limit
-- out: seq bigint, at_us bigint, actor text, action text, subject text, detail text (JSON)
-- move: nothing
-- fence: none
-- index: operator_log_pkey backwards
SELECT seq, (extract(epoch FROM at) * 1000000)::bigint AS at_us, actor, action, subject, detail::text AS detail
FROM operator_log
WHERE ($1::text IS NULL OR starts_with(subject, $1)) AND ($2::text IS NULL OR actor = $2 OR split_part(actor, '@', 1) = $2)
  AND ($3::double precision IS NULL OR at >= clock_timestamp() - make_interval(secs => $3))
ORDER BY seq DESC
LIMIT $4::integer
