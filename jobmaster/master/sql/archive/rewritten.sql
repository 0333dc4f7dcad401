-- rewritten: a range that is in the lake alone has other files, which hold all of its jobs or those that are not forgotten
-- in: $1 text name of the range
-- in: $2 text run of the files that it had
-- in: $3 text run of the new ones
-- in: $4 text files (JSON)
-- in: $5 bigint rows
-- in: $6 text checksum
-- in: $7 bigint rows of attempts
-- in: $8 text checksum of attempts
-- in: $9 bigint jobs that were forgotten
-- out: name text (no row: another run has replaced the files)
-- move: nothing
-- fence: the state and the run; the session holds the range (lock_range)
-- index: archive_manifest_pkey
UPDATE archive_manifest
SET run_id = $3::text, files = $4::text::jsonb, rows = $5::bigint, checksum = $6::text::numeric, attempt_rows = $7::bigint,
    attempt_checksum = $8::text::numeric, forgotten = forgotten + $9::bigint, verified_at = clock_timestamp()
WHERE name = $1::text AND run_id = $2::text AND state = 'DROPPED' AND NOT discarded
RETURNING name
