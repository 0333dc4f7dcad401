-- touch: the producer of an OPEN batch is alive
-- in: $1 uuid batch
-- in: $2 double precision seconds without a further sign after which it counts as abandoned
-- out: cancel_requested boolean (no row: it is not OPEN)
-- move: nothing
-- fence: the state of the batch
-- index: batch_pkey (HOT: nothing indexed changes)
UPDATE batch SET silent_after = clock_timestamp() + make_interval(secs => $2::double precision)
WHERE id = $1::uuid AND state = 'OPEN'
RETURNING cancel_requested
