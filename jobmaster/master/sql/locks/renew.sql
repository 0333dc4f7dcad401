-- renew: the holder of a lock extends it
-- in: $1 text name
-- in: $2 bigint fence
-- in: $3 double precision ttl, seconds
-- out: fence bigint (no row: another has it, or it was given back)
-- move: nothing
-- fence: compare-and-set on the fencing number. A lock that has expired and that no other program has taken is extended: it had no
--        other holder meanwhile.
-- index: named_lock_pkey
UPDATE named_lock SET expires_at = clock_timestamp() + make_interval(secs => $3::double precision)
WHERE name = $1::text AND fence = $2::bigint AND holder IS NOT NULL
RETURNING fence
