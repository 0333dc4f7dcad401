-- sweep_begin: begins a range of their own for jobs that ended in the attic
-- in: $1 timestamptz those that ended before it
-- out: name text (NULL: there is none), pages bigint (of the attic)
-- move: none -> SEALED
-- fence: advisory lock inside the function
-- index: none; the attic is read until one is found
SELECT sweep_begin($1::timestamptz) AS name,
       pg_relation_size('job_attic') / current_setting('block_size')::bigint AS pages
