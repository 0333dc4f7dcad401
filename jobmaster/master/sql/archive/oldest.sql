-- oldest: the oldest range that is still a partition of job
-- in: nothing
-- out: name text, lo uuid, hi uuid
-- move: nothing
-- fence: none
-- index: none; catalogue
SELECT name, lo, hi FROM partitions_of('job') WHERE lo IS NOT NULL ORDER BY lo LIMIT 1
