-- counts: jobs by state from one id on
-- in: $1 uuid lowest id
-- out: state text, jobs bigint, rescued bigint
-- move: nothing
-- fence: none
-- index: primary key of job from $1 on
SELECT state::text AS state, count(*) AS jobs, count(*) FILTER (WHERE rescues > 0) AS rescued
FROM job_kept
WHERE id >= $1::uuid
GROUP BY state
ORDER BY state
