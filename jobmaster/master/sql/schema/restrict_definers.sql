-- restrict_definers: functions that run with their maker's rights: for those alone who are granted them, and with a search path of their own
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none. Temporary tables come last in the path, so that no caller puts one in the place of a table of ours.
-- index: none
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.prosecdef AND p.prorettype <> 'trigger'::regtype
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one);
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', one, current_schema());
    END LOOP;
END
$$
