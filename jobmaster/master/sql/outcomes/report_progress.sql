-- report_progress: how far the runs of some jobs are
-- in: $1 uuid[] jobs
-- in: $2 integer[] tokens of the runs
-- in: $3 double precision[] done
-- in: $4 double precision[] totals, NULL = not known
-- in: $5 text[] texts
-- out: nothing
-- move: nothing
-- fence: the token: a superseded run, which may still report, overwrites no line of a later one
-- index: run_progress_pkey, as the arbiter
INSERT INTO run_progress AS p (job_id, token, done, total, text)
SELECT job_id, token, done, total, text
FROM unnest($1::uuid[], $2::integer[], $3::double precision[], $4::double precision[], $5::text[])
     AS new (job_id, token, done, total, text)
ORDER BY job_id
ON CONFLICT (job_id) DO UPDATE
SET token = EXCLUDED.token, done = EXCLUDED.done, total = EXCLUDED.total, text = EXCLUDED.text, at = clock_timestamp()
WHERE p.token <= EXCLUDED.token
