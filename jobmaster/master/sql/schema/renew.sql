-- renew: every table of the schema is as the migrations left it
-- in: nothing
-- out: nothing
-- move: nothing; rows go without a trace
-- fence: none; for schemas of tests alone, whose other sessions are ended before
-- index: none; tables are emptied
DO $$
DECLARE
    filled text;
    kept record;
BEGIN
    SET LOCAL session_replication_role = replica;
    SELECT string_agg(oid::regclass::text, ', ') INTO filled
    FROM pg_class
    WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND pg_relation_size(oid) > 0;
    IF filled IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || filled || ' CASCADE';
    END IF;
    FOR kept IN
        SELECT relname AS name FROM pg_class WHERE relkind = 'r' AND relnamespace = 'jobmaster_pristine'::regnamespace
    LOOP
        EXECUTE format(
            'INSERT INTO %I OVERRIDING SYSTEM VALUE SELECT * FROM jobmaster_pristine.%I', kept.name, kept.name
        );
    END LOOP;
END
$$
