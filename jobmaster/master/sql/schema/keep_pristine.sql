-- keep_pristine: what the migrations have written is kept beside the schema, so that renew can put it back
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none; for schemas of tests alone
-- index: none; each table that is not empty is read once
DO $$
DECLARE
    kept record;
BEGIN
    CREATE SCHEMA jobmaster_pristine;
    FOR kept IN
        SELECT relname AS name
        FROM pg_class
        WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('CREATE TABLE jobmaster_pristine.%I AS TABLE %I', kept.name, kept.name);
    END LOOP;
END
$$
