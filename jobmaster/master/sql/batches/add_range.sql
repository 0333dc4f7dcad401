-- add_range: an OPEN batch gets another range of ids; sent again, the same
-- in: $1 uuid batch
-- in: $2 uuid lowest id of the range
-- in: $3 bigint number of its first job
-- in: $4 uuid the producer of a batch with a key, NULL = it has no key
-- out: lo uuid (no row: it is not OPEN, another producer fills it, or the range is taken)
-- move: nothing
-- fence: the row of the batch, locked: a batch that is being closed or has ended gets no range
-- index: batch_pkey, batch_range_pkey
WITH held AS MATERIALIZED (
    SELECT id FROM batch WHERE id = $1::uuid AND state = 'OPEN' AND producer IS NOT DISTINCT FROM $4::uuid FOR SHARE
)
INSERT INTO batch_range AS r (lo, batch, first) SELECT $2::uuid, id, $3::bigint FROM held
ON CONFLICT (lo) DO UPDATE SET batch = r.batch WHERE r.batch = EXCLUDED.batch
RETURNING lo
