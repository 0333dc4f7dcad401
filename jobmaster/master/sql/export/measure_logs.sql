-- measure_logs: lines of detached jobs, and the sum of their checksums; the table's own name replaces job_detached
-- in: nothing
-- out: lines bigint, checksum text
-- move: nothing
-- fence: none: the jobs have ended. A line that comes later is found by the comparison with the files
-- index: job_log_pkey for each job, or none
SELECT count(*) AS lines,
       coalesce(sum(('x' || left(md5(convert_to(concat_ws('|', l.job_id, l.token, l.number, to_us(l.at), l.level, l.text), 'UTF8')),
                                 13))::bit(52)::bigint), 0)::text AS checksum
FROM job_detached AS j JOIN job_log AS l ON l.job_id = j.id
