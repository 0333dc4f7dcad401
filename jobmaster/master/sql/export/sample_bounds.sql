-- sample_bounds: ids that cut a range into parts with about as many jobs each, from a sample of pages of the tables that the range meets
-- in: $1 uuid lowest id
-- in: $2 uuid highest id, itself outside
-- in: $3 bigint pages to look at
-- in: $4 double precision[] shares, ascending, between 0 and 1
-- out: bounds uuid[], jobs bigint (in the sample), whole boolean (the sample is every page)
-- move: nothing
-- fence: none, it reads; any cut is right, a good one is only faster
-- index: none: a sample of pages; the range prunes partitions
WITH met AS MATERIALIZED (
    SELECT least(100, 100.0 * $3::bigint * current_setting('block_size')::bigint / greatest(1, sum(pg_relation_size(c.oid)))) AS percent
    FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid
    LEFT JOIN partitions_of('job') p ON i.inhparent = 'job'::regclass AND p.name = c.relname
    LEFT JOIN archive_manifest m ON i.inhparent = 'job_detached'::regclass AND m.name = c.relname
    WHERE i.inhparent IN ('job'::regclass, 'job_detached'::regclass)
      AND coalesce(p.hi, m.hi, 'ffffffff-ffff-ffff-ffff-ffffffffffff') > $1::uuid
      AND coalesce(p.lo, m.lo, '00000000-0000-0000-0000-000000000000') < $2::uuid
), sampled AS (
    SELECT id FROM job TABLESAMPLE SYSTEM ((SELECT percent FROM met)) WHERE id >= $1::uuid AND id < $2::uuid
    UNION ALL
    SELECT id FROM job_detached TABLESAMPLE SYSTEM ((SELECT percent FROM met)) WHERE id >= $1::uuid AND id < $2::uuid
)
SELECT percentile_disc($4::double precision[]) WITHIN GROUP (ORDER BY id) AS bounds, count(*) AS jobs,
       (SELECT percent >= 100 FROM met) AS whole
FROM sampled
