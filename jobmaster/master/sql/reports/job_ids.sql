-- job_ids: ids that begin with a prefix, at most two: enough to know whether it is unique
-- in: $1 uuid lowest id of the prefix, $2 uuid highest
-- out: id uuid
-- move: nothing
-- fence: none
-- index: primary key of job
SELECT id FROM job_kept WHERE id BETWEEN $1::uuid AND $2::uuid ORDER BY id LIMIT 2
