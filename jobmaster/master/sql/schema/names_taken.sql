-- names_taken: tables and views of others, in a schema without migrations, that have names of ours
-- in: $1 text schema
-- in: $2 text[] names of ours
-- out: name text
-- move: nothing
-- fence: none
-- index: none; catalogue
SELECT c.relname::text AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relname = ANY ($2::text[])
  AND NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema_migration')
ORDER BY c.relname
