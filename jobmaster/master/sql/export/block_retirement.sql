-- block_retirement: no range leaves the master while the transaction is open
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: ACCESS SHARE on every table of jobs and attempts: as of a reader; it blocks only detaching and dropping
-- index: none
LOCK TABLE job, job_detached IN ACCESS SHARE MODE
