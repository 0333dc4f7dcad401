-- close: no more jobs come into a batch; their number is known
-- in: $1 uuid batch
-- in: $2 bigint number of its jobs
-- out: id uuid (no row: it was not OPEN)
-- move: nothing
-- fence: compare-and-set on the state
-- index: batch_pkey
UPDATE batch
SET state = 'CLOSED', size = $2::bigint, closed_at = clock_timestamp(), silent_after = NULL,
    look_at = least(clock_timestamp() + interval '10 seconds', expires_at)
WHERE id = $1::uuid AND state = 'OPEN'
RETURNING id
