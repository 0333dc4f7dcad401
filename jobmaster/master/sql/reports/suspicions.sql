-- suspicions: what agents found suspicious, the latest first
-- in: $1 double precision seconds back from now
-- in: $2 integer limit
-- out: kind text, subject text, ago_seconds double precision, detail text, frozen boolean
-- move: nothing
-- fence: none
-- index: operator_log_pkey backwards
SELECT detail ->> 'kind' AS kind, subject, extract(epoch FROM clock_timestamp() - at)::double precision AS ago_seconds,
       detail ->> 'detail' AS detail, (detail ->> 'frozen')::boolean AS frozen
FROM operator_log
WHERE action = 'suspicion' AND at > clock_timestamp() - make_interval(secs => $1::double precision)
ORDER BY seq DESC
LIMIT $2::integer
