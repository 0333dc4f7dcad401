-- partitions: partitions of a table with their bounds
-- in: $1 text name of the partitioned table
-- out: name name, bound text
-- move: nothing
-- fence: none
-- index: the catalogue
SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = $1::text::regclass
ORDER BY c.relname
