-- retire_switch: the range leaves job, the new attic replaces the old one, the watermark rises
-- in: $1 bigint rows that may have changed since the last copy
-- out: name text (NULL: more have changed; no change was made)
-- move: nothing
-- fence: ACCESS EXCLUSIVE on job inside the function, given up after a tenth of a second; under it only rows that have
--        changed are copied
-- index: job_pkey of the attic, the new attic and the range
SELECT retire_switch($1::bigint) AS name
