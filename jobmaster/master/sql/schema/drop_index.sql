-- drop_index: an index whose building was broken off goes; its name is an example
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none that readers or writers wait for
-- index: none
DROP INDEX CONCURRENTLY job_example
