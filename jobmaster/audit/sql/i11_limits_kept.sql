-- I11: limits are never exceeded.
-- in:    $1 evidence rows
-- out:   subject (limit and key), detail, total
-- why:   permits are counted as admissions count them: those whose job is PROCESSING with their token, and what is lent to living
--        agents, or to dead ones whose runs may go on. The newest of them was given when all others were there, so together they are no more than the limit of that
--        moment, which it has with it. A limit that was lowered since is no violation. A job heavier than the limit takes all
--        of it, and no more.
-- index: permit_pkey, in order; job_pkey for each permit; permit_loan, small, with agent_pkey for each loan, and bucket_owner for each of the dead
SELECT k.name || CASE WHEN k.key = '' THEN '' ELSE ' ' || k.key END AS subject,
       format('%s permits are taken, and the newest was given under a limit of %s', k.taken, k.maximum) AS detail,
       count(*) OVER () AS total
FROM (
    SELECT r.name, r.key, sum(least(r.weight, r.newest)) AS taken, min(r.newest) AS maximum
    FROM (
        SELECT p.name, p.key, p.weight,
               first_value(p.maximum) OVER (PARTITION BY p.name, p.key ORDER BY p.given_at DESC, p.maximum DESC) AS newest
        FROM (
            SELECT name, key, weight, maximum, admitted_at AS given_at
            FROM permit
            WHERE (SELECT j.state = 'PROCESSING' AND j.token = permit.token FROM job j WHERE j.id = permit.job_id)
            UNION ALL
            SELECT name, key, permits, maximum, lent_at
            FROM loan_in_force
            WHERE permits > 0
        ) AS p
    ) AS r
    GROUP BY r.name, r.key
) AS k
WHERE k.taken > k.maximum
ORDER BY k.name, k.key
LIMIT $1::int
