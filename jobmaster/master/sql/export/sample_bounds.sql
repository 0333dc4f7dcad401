-- sample_bounds: ids that cut a range into parts with about as many jobs each, from a sample of pages
-- in: $1 uuid lowest id
-- in: $2 uuid highest id, itself outside
-- in: $3 bigint pages to look at
-- in: $4 double precision[] shares, ascending, between 0 and 1
-- out: bounds uuid[]
-- move: nothing
-- fence: none, it reads; any cut is right, a good one is only faster
-- index: none: a sample of pages; the range prunes partitions
SELECT percentile_disc($4::double precision[]) WITHIN GROUP (ORDER BY id) AS bounds
FROM job TABLESAMPLE SYSTEM (
    (SELECT least(100, 100.0 * $3::bigint / greatest(1, sum(pg_relation_size(relid)) / current_setting('block_size')::bigint))
     FROM pg_partition_tree('job'::regclass))
)
WHERE id >= $1::uuid AND id < $2::uuid
