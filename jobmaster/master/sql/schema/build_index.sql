-- build_index: an index on one partition, while others write to it; the text after INDEX CONCURRENTLY is an example
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none that readers or writers wait for; it waits for transactions that are older than itself
-- index: none
CREATE INDEX CONCURRENTLY job_example ON job (id)
