-- 0017 definer: functions that run with their maker's rights look at temporary tables last.
-- programs: >= 0016

-- A session's temporary tables come before those of every schema unless the path names them. A role that may do no more than
-- write jobs could so put a table of its own, with triggers that run with these rights, in the place of job_touched; or take
-- the notes of its writes away from the retirement, and let a late copy pass the guard of the attic.
DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['note_touched', 'job_attic_guard', 'attempt_attic_guard'] LOOP
        EXECUTE format('ALTER FUNCTION %I() SET search_path = %I, pg_temp', one, current_schema());
    END LOOP;
END
$$;
