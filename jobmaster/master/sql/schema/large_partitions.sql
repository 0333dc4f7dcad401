-- large_partitions: partitions that are too long for an index to be built while writers wait
-- in: $1 text partitioned table
-- in: $2 text suffix of the names of the indexes on its partitions
-- in: $3 bigint bytes from which a partition counts
-- out: name text, index text, valid boolean (NULL: there is no such index)
-- move: nothing
-- fence: none
-- index: none; catalogue
SELECT c.relname::text AS name, left(c.relname || '_' || $2::text, 63) AS index, i.indisvalid AS valid
FROM pg_partition_tree(to_regclass(quote_ident($1::text))) t
JOIN pg_class c ON c.oid = t.relid
LEFT JOIN pg_class x ON x.relnamespace = c.relnamespace AND x.relname = left(c.relname || '_' || $2, 63)
LEFT JOIN pg_index i ON i.indexrelid = x.oid
WHERE t.isleaf AND pg_relation_size(c.oid) >= $3::bigint
ORDER BY c.relname
