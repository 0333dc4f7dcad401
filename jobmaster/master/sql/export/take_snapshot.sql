-- take_snapshot: the name under which other transactions can see what this one sees
-- in: nothing
-- out: name text
-- move: nothing
-- fence: the caller's transaction, REPEATABLE READ; the name is good for as long as it is open
-- index: none
SELECT pg_export_snapshot() AS name
