-- schema_exists: whether the schema and its list of migrations are there
-- in: $1 text schema
-- out: schema_there boolean, list_there boolean
-- move: nothing
-- fence: none
-- index: none; catalogue
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text) AS schema_there,
       EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema_migration') AS list_there
