-- keep_ranges: no range leaves the master while the transaction is open
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: ACCESS SHARE on every table of jobs and attempts: as light as a reader's, in the way of detaching and dropping only
-- index: none
LOCK TABLE job, job_detached IN ACCESS SHARE MODE
