-- begin_pauses: a scan makes pauses again (see in_portions)
-- in: $1 bigint key of the scan's advisory lock
-- out: held boolean
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT pg_advisory_unlock($1) AS held
