-- detached_logs: the lines that runs of some detached jobs have written; the table's own name replaces job_detached
-- in: $1 text first place (ctid)
-- in: $2 text place beyond the last one (ctid)
-- out: job_id uuid, token integer, number integer, at timestamptz, level smallint, text text
-- move: nothing
-- fence: none: the jobs have ended, and their lines are deleted when the range has left the master
-- index: job_log_pkey for each job, or none
SELECT l.job_id, l.token, l.number, l.at, l.level, l.text
FROM job_detached AS j JOIN job_log AS l ON l.job_id = j.id
WHERE j.ctid >= $1::text::tid AND j.ctid < $2::text::tid
