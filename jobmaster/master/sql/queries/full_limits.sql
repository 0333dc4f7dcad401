-- full_limits: limits of which a job of a bucket was denied a permit not long ago
-- in: $1 uuid bucket
-- in: $2 double precision how long ago, seconds (jobs that still wait have asked again since)
-- out: name text, key text, running integer (NULL: any number), rate double precision (starts a second, NULL: any number),
--      taken bigint (permits of the key)
-- move: nothing
-- fence: none; permits are counted as admissions count them, without their lock
-- index: none for the notes, which are as many as there are keys of limits; permit_pkey, job_pkey for each permit
SELECT s.name::text AS name, s.key::text AS key, coalesce(l.set_running, l.declared_running) AS running,
       coalesce(l.set_rate, l.declared_rate) AS rate,
       coalesce((
           SELECT sum(least(p.weight, coalesce(l.set_running, l.declared_running))) FROM permit p
           WHERE p.name = s.name AND p.key = s.key
             AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id)
       ), 0)::bigint AS taken
FROM limit_state s
LEFT JOIN job_limit l ON l.name = s.name
WHERE s.waiting_bucket = $1::uuid AND s.name <> '' AND s.waiting_at > clock_timestamp() - make_interval(secs => $2::double precision)
ORDER BY s.name, s.key
