-- retirement: the range that is on its way out of job
-- in: nothing
-- out: name text, left_job boolean, moved bigint (unfinished jobs that went to the attic, as far as they are counted)
-- move: nothing
-- fence: none
-- index: none; one row
SELECT name, left_job, moved FROM retirement
