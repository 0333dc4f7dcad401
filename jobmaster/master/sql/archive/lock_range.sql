-- lock_range: takes the lock on a range: one archiver at a time works on it; the lock ends with the session
-- in: $1 text name of the range
-- out: taken boolean
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT pg_try_advisory_lock(hashtext('jobmaster archive ' || current_schema()), hashtext($1::text)) AS taken
