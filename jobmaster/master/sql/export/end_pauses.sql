-- end_pauses: a scan goes on without pauses (see in_portions), until they begin again or this session ends
-- in: $1 bigint key of the scan's advisory lock
-- out: held boolean (false: not now, because another session looks at the lock or holds it)
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT pg_try_advisory_lock($1) AS held
