-- sweep_pages: moves ended jobs of some pages of the attic to the range of the sweep
-- in: $1 text name of the range
-- in: $2 timestamptz those that ended before it
-- in: $3 bigint first page
-- in: $4 bigint page beyond the last
-- out: swept bigint
-- move: nothing
-- fence: the rows, FOR UPDATE SKIP LOCKED: the guard of the attic locks the row of a writer that has passed it
-- index: pages by number; job_pkey and attempt_pkey of the attic
SELECT sweep_pages($1::text, $2::timestamptz, $3::bigint, $4::bigint) AS swept
