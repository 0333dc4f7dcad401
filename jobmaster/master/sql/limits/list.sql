-- list: limits, with what is taken of their fullest key
-- in: $1 text name, NULL = all
-- in: $2 integer limit
-- out: name text, running integer (NULL: none), rate double precision, burst double precision, declared_running integer, declared_rate double precision, declared_burst double precision, declared boolean, set_at timestamptz, set_by text, set_reason text, taken bigint (permits of all keys, lent ones among them), keys bigint (with a permit), fullest_key text, fullest bigint (permits of that key)
-- move: nothing
-- fence: none; permits are counted as admissions count them, without their lock
-- index: job_limit_pkey, in order; permit_pkey and permit_loan_pkey for each limit; job_pkey for each permit, agent_pkey for each loan
SELECT l.name,
       coalesce(l.set_running, l.declared_running) AS running,
       coalesce(l.set_rate, l.declared_rate) AS rate,
       CASE WHEN l.set_rate IS NULL THEN coalesce(l.set_burst, l.declared_burst)
            ELSE coalesce(l.set_burst, greatest(l.set_rate, 1)) END AS burst,
       l.declared_running, l.declared_rate, l.declared_burst, l.declared_at IS NOT NULL AS declared,
       l.set_at, l.set_by, l.set_reason,
       coalesce(now_taken.taken, 0)::bigint AS taken, coalesce(now_taken.keys, 0)::bigint AS keys,
       coalesce(now_taken.fullest_key, '') AS fullest_key, coalesce(now_taken.fullest, 0)::bigint AS fullest
FROM job_limit l
LEFT JOIN LATERAL (
    SELECT sum(k.taken) AS taken, count(*) AS keys, max(k.taken) AS fullest,
           (array_agg(k.key ORDER BY k.taken DESC, k.key))[1] AS fullest_key
    FROM (SELECT t.key, sum(t.taken) AS taken
          FROM (SELECT p.key, least(p.weight, coalesce(l.set_running, l.declared_running)) AS taken FROM permit p
                WHERE p.name = l.name
                  AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id)
                UNION ALL
                SELECT o.key, o.permits FROM loan_in_force o WHERE o.name = l.name AND o.permits > 0) AS t
          GROUP BY t.key) AS k
) AS now_taken ON true
WHERE $1::text IS NULL OR l.name = $1
ORDER BY l.name
LIMIT $2::integer
