-- applied: the migrations that have been applied
-- in: nothing
-- out: number integer, name text, checksum text, applied_at timestamptz, by text, programs integer (NULL: its own number)
-- move: nothing
-- fence: none
-- index: none; a few rows. The last column is read so, because a schema that an older program has made lacks it
SELECT number, name, checksum, applied_at, by, (to_jsonb(m) ->> 'programs')::integer AS programs
FROM schema_migration m
ORDER BY number
