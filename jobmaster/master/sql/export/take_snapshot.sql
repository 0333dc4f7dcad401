-- take_snapshot: the name under which other transactions can use the snapshot of this one
-- in: nothing
-- out: name text
-- move: nothing
-- fence: the caller's transaction, REPEATABLE READ; the name is valid while it is open
-- index: none
SELECT pg_export_snapshot() AS name
