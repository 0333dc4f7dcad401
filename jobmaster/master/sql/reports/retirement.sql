-- retirement: the range that is leaving job
-- in: nothing
-- out: name text, at_work boolean (whether an archiver works on it), noted_bytes bigint (of the ids of rows that changed)
-- move: nothing
-- fence: none
-- index: none; one row, and the lock table
SELECT name,
       EXISTS (
           SELECT FROM pg_locks
           WHERE locktype = 'advisory' AND granted
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND classid::bigint = hashtext('jobmaster archive ' || current_schema())::bigint & 4294967295
             AND objid::bigint = hashtext('job_attic')::bigint & 4294967295
       ) AS at_work,
       pg_relation_size('job_touched') AS noted_bytes
FROM retirement
