-- manifest: every range that has left the master or is about to, oldest first
-- in: nothing
-- out: name text, attempts text, state text, lo uuid, hi uuid, moved bigint, discarded boolean, rows bigint, checksum text,
--      attempt_rows bigint, attempt_checksum text, run_id text, lake text, format integer, files text (JSON),
--      sealed_at timestamptz, detached_at timestamptz, exported_at timestamptz, verified_at timestamptz,
--      published_at timestamptz, dropped_at timestamptz, ended_from timestamptz, ended_to timestamptz
-- move: nothing
-- fence: none
-- index: none; one row a range
SELECT name, attempts, state::text AS state, lo, hi, moved, discarded, rows, checksum::text AS checksum, attempt_rows,
       attempt_checksum::text AS attempt_checksum, run_id, lake, format, files::text AS files, sealed_at, detached_at,
       exported_at, verified_at, published_at, dropped_at, ended_from, ended_to
FROM archive_manifest
ORDER BY lo, name
