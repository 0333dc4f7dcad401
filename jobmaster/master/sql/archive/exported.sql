-- exported: files of a range are written, and this is what they must hold
-- in: $1 text name of the range
-- in: $2 text run
-- in: $3 text lake
-- in: $4 integer version of the layout
-- in: $5 bigint rows
-- in: $6 text checksum
-- in: $7 bigint rows of attempts
-- in: $8 text checksum of attempts
-- in: $9 timestamptz first end
-- in: $10 timestamptz last end
-- out: name text (no row: the range is in another state)
-- move: DETACHED -> EXPORTED
-- fence: the state; the archiver's session holds the range (take)
-- index: archive_manifest_pkey
UPDATE archive_manifest
SET state = 'EXPORTED', run_id = $2::text, lake = $3::text, format = $4::integer, rows = $5::bigint,
    checksum = $6::text::numeric, attempt_rows = $7::bigint, attempt_checksum = $8::text::numeric,
    ended_from = $9::timestamptz, ended_to = $10::timestamptz, exported_at = clock_timestamp()
WHERE name = $1::text AND state = 'DETACHED'
RETURNING name
