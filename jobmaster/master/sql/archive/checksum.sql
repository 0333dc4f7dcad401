-- checksum: row counts and checksums of the two tables of a detached range
-- in: $1 text name of the table of jobs
-- in: $2 text name of the table of attempts
-- out: rows bigint, checksum text, attempt_rows bigint, attempt_checksum text, ended_from timestamptz, ended_to timestamptz
-- move: nothing
-- fence: none; a detached range has no writers
-- index: none; all of it is read
SELECT rows, checksum::text AS checksum, attempt_rows, attempt_checksum::text AS attempt_checksum, ended_from, ended_to
FROM measure_detached($1::text, $2::text)
