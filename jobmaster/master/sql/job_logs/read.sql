-- read: lines of one job, run by run
-- in: $1 uuid job
-- in: $2 integer token of the run of the last line that was read, 0 = none
-- in: $3 integer number of that line
-- in: $4 integer limit
-- out: token integer, number integer, at timestamptz, level smallint, text text
-- move: nothing
-- fence: none
-- index: job_log_pkey, in order
SELECT token, number, at, level, text
FROM job_log
WHERE job_id = $1::uuid AND (token, number) > ($2::integer, $3::integer)
ORDER BY token, number
LIMIT $4::integer
