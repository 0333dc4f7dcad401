-- ensure_partitions: the ranges of the coming days exist
-- in: $1 text span (day, week, month), NULL = as last time
-- in: $2 integer days ahead
-- out: name text of each new partition
-- move: nothing
-- fence: advisory lock inside the function
-- index: none; catalogue
SELECT name FROM ensure_partitions($1::text, $2::integer) AS name
