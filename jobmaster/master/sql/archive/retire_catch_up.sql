-- retire_catch_up: rows that changed since they were copied are copied again
-- in: $1 bigint entries of job_touched
-- out: taken bigint
-- move: nothing
-- fence: the row of retirement; what is not committed yet stays noted
-- index: job_pkey of the attic, the new attic and the range
SELECT retire_catch_up($1::bigint) AS taken
