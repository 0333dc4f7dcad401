-- export_again: the files of a range differ from the verified ones; the range is to be exported again, and no reader uses them
-- in: $1 text name of the range
-- in: $2 text run
-- out: name text (no row: the range is in another state, or another run is meant)
-- move: EXPORTED|VERIFIED|PUBLISHED -> DETACHED
-- fence: the state and the run: a DROPPED range has only its files
-- index: archive_manifest_pkey
UPDATE archive_manifest
SET state = 'DETACHED', run_id = NULL, lake = NULL, format = NULL, rows = NULL, checksum = NULL, attempt_rows = NULL,
    attempt_checksum = NULL, files = NULL, ended_from = NULL, ended_to = NULL, exported_at = NULL, verified_at = NULL,
    published_at = NULL
WHERE name = $1::text AND run_id = $2::text AND state IN ('EXPORTED', 'VERIFIED', 'PUBLISHED')
RETURNING name
