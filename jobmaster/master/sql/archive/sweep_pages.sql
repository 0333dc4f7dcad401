-- sweep_pages: the stragglers of some pages of the attic that have ended move to their range
-- in: $1 text name of the range
-- in: $2 timestamptz those that ended before it
-- in: $3 bigint first page
-- in: $4 bigint page beyond the last
-- out: swept bigint
-- move: nothing
-- fence: the rows, FOR UPDATE SKIP LOCKED: the guard of the attic locks the row that it lets a writer pass for
-- index: pages by number; job_pkey and attempt_pkey of the attic
SELECT sweep_pages($1::text, $2::timestamptz, $3::bigint, $4::bigint) AS swept
