-- verified: the files of a range were read again, and count and checksum are those of its tables
-- in: $1 text name of the range
-- in: $2 text run
-- in: $3 text files (JSON)
-- out: name text (no row: the range is in another state, or another run is meant)
-- move: EXPORTED -> VERIFIED
-- fence: the state and the run; the archiver's session holds the range (lock_range)
-- index: archive_manifest_pkey
UPDATE archive_manifest
SET state = 'VERIFIED', files = $3::text::jsonb, verified_at = clock_timestamp()
WHERE name = $1::text AND run_id = $2::text AND state = 'EXPORTED'
RETURNING name
