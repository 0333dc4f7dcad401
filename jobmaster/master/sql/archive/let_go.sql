-- let_go: another archiver may work on a range
-- in: $1 text name of the range
-- out: freed boolean
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT pg_advisory_unlock(hashtext('jobmaster archive ' || current_schema()), hashtext($1::text)) AS freed
