-- applied: the migrations that have been applied
-- in: nothing
-- out: number integer, name text, checksum text, applied_at timestamptz, by text
-- move: nothing
-- fence: none
-- index: none; a few rows
SELECT number, name, checksum, applied_at, by FROM schema_migration ORDER BY number
