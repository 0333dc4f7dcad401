-- attached: the ranges that are partitions of job, oldest first
-- in: nothing
-- out: name text, lo uuid, hi uuid
-- move: nothing
-- fence: none
-- index: none; catalogue
SELECT name, lo, hi FROM partitions_of('job') WHERE lo IS NOT NULL ORDER BY lo
