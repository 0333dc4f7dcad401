-- close: no more jobs come into a batch; their number is known
-- in: $1 uuid batch
-- in: $2 bigint number of its jobs
-- in: $3 uuid the producer of a batch with a key, NULL = it has no key
-- in: $4 bigint numbers that it has given to jobs
-- out: id uuid (no row: it was not OPEN, or another producer fills it)
-- move: nothing
-- fence: compare-and-set on the state and the producer
-- index: batch_pkey
UPDATE batch
SET state = 'CLOSED', size = $2::bigint, settled = $4::bigint, stored = $2, reserved = $4, closed_at = clock_timestamp(), silent_after = NULL,
    look_at = least(clock_timestamp() + interval '10 seconds', expires_at)
WHERE id = $1::uuid AND state = 'OPEN' AND producer IS NOT DISTINCT FROM $3::uuid
RETURNING id
