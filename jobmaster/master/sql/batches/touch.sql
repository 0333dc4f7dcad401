-- touch: the producer of an OPEN batch is alive, and has come so far
-- in: $1 uuid batch
-- in: $2 double precision seconds without a further sign after which it counts as abandoned
-- in: $3 uuid the producer of a batch with a key, NULL = it has no key
-- in: $4 bigint all jobs before this number are settled, NULL = as before
-- in: $5 bigint so many of them are stored, NULL = as before
-- in: $6 bigint no job from this number on was stored, NULL = as before
-- out: cancel_requested boolean (no row: it is not OPEN, or another producer fills it)
-- move: nothing
-- fence: the state of the batch, and its producer
-- index: batch_pkey (HOT: nothing indexed changes)
UPDATE batch
SET silent_after = clock_timestamp() + make_interval(secs => $2::double precision), signed_at = clock_timestamp(),
    settled = coalesce($4::bigint, settled), stored = coalesce($5::bigint, stored), reserved = coalesce($6::bigint, reserved)
WHERE id = $1::uuid AND state = 'OPEN' AND producer IS NOT DISTINCT FROM $3::uuid
RETURNING cancel_requested
