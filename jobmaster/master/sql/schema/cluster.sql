-- cluster: which cluster the schema belongs to
-- in: nothing
-- out: name text, uid uuid
-- move: nothing
-- fence: none
-- index: none; one row
SELECT name, uid FROM cluster
