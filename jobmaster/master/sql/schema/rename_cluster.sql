-- rename_cluster: the schema belongs to another cluster from now on
-- in: $1 text name
-- out: nothing
-- move: nothing
-- fence: none; for schemas of tests alone
-- index: none; the table has one row
UPDATE cluster SET name = $1::text, uid = gen_random_uuid()
