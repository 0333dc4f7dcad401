-- forget: a session as it was when it was opened, for the next attempt: no temporary tables, roles, settings, cursors,
--         listeners, locks or statements prepared in SQL of the attempt before
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none; outside a transaction. DISCARD ALL would do the same, and throw away the plan of the outcome: planned again, it
--        takes eight times as long as the rest of an attempt
-- index: none
CLOSE ALL;
UNLISTEN *;
SET SESSION AUTHORIZATION DEFAULT;
RESET ALL;
SELECT pg_advisory_unlock_all();
DISCARD TEMP;
DISCARD SEQUENCES;
DO $$
DECLARE
    prepared record;
BEGIN
    FOR prepared IN SELECT name FROM pg_prepared_statements WHERE from_sql LOOP
        EXECUTE format('DEALLOCATE %I', prepared.name);
    END LOOP;
END
$$
