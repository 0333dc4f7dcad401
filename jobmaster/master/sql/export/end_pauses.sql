-- end_pauses: a scan goes on without pauses (see in_portions), until they begin again or this session ends
-- in: $1 bigint key of the scan's advisory lock
-- out: nothing
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT pg_advisory_lock($1)
