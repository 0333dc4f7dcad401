-- retire_clean: copies of unfinished rows leave a range that has left job, and their attempts move to the attic
-- in: $1 bigint jobs
-- out: more boolean (false: the range holds finished jobs only)
-- move: none|SEALED -> DETACHED
-- fence: the row of retirement; the range has no other writer
-- index: job_pkey of the attic and the range, attempt_pkey of the range; at last the range is read once
SELECT retire_clean($1::bigint) AS more
