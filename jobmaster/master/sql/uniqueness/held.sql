-- held: unique keys that a job holds, with the job
-- in: $1 text handler, NULL = every one
-- in: $2 text key, NULL = every one
-- in: $3 integer limit
-- out: handler text, key text, job_id uuid, state text (NULL: the job has no row any more), term text, held_us bigint, until_us bigint (of a window)
-- move: nothing
-- fence: none. Whether a key is held is decided as submit_unique does it, which locks the key first:
--        a job that has moved to another cluster holds its key on.
-- index: unique_key_pkey; job_pkey, one partition for each id
SELECT u.handler, u.key, u.job_id, j.state::text AS state, u.term, to_us(u.held_at) AS held_us, to_us(u.until) AS until_us
FROM unique_key u LEFT JOIN job j ON j.id = u.job_id
WHERE ($1::text IS NULL OR u.handler = $1)
  AND ($2::text IS NULL OR u.key = $2)
  AND (CASE u.term
         WHEN 'window' THEN u.until > clock_timestamp()
         WHEN 'live' THEN j.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
         ELSE j.state = 'MOVED' OR j.state IN ('HELD', 'ASSIGNED') AND NOT has_begun(j.attempt, j.rescues, j.headers)
       END)
ORDER BY u.handler, u.key
LIMIT $3::integer
