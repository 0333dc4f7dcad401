-- id_range: which ids have a partition of their own
-- in: nothing
-- out: floor uuid, ceiling uuid (first id above the last partition)
-- move: nothing
-- fence: none
-- index: none; catalogue
SELECT floor, (SELECT hi FROM partitions_of('job') ORDER BY hi DESC LIMIT 1) AS ceiling FROM watermark
