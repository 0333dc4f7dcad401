-- published: readers of the lake may use the files of a range
-- in: $1 text name of the range
-- in: $2 text run
-- out: name text (no row: the range is in another state, or another run is meant)
-- move: VERIFIED -> PUBLISHED
-- fence: the state and the run; the archiver's session holds the range (lock_range)
-- index: archive_manifest_pkey
UPDATE archive_manifest
SET state = 'PUBLISHED', published_at = clock_timestamp()
WHERE name = $1::text AND run_id = $2::text AND state = 'VERIFIED'
RETURNING name
