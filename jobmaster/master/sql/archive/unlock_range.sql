-- unlock_range: releases the lock of lock_range: another archiver may work on the range
-- in: $1 text name of the range
-- out: freed boolean
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT pg_advisory_unlock(hashtext('jobmaster archive ' || current_schema()), hashtext($1::text)) AS freed
