-- retire_switch: the range leaves job, the new attic takes the place of the old one, the floor moves up
-- in: $1 bigint rows that may have changed since the last look
-- out: name text (NULL: more have changed; nothing was done)
-- move: nothing
-- fence: ACCESS EXCLUSIVE on job inside the function, given up after a tenth of a second; under it only rows that have
--        changed are copied
-- index: job_pkey of the attic, the new attic and the range
SELECT retire_switch($1::bigint) AS name
