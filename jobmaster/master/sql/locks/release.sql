-- release: the holder gives a lock back
-- in: $1 text name
-- in: $2 uuid acquisition
-- out: nothing
-- move: nothing
-- fence: compare-and-set on the acquisition, which is known also when the answer with the fencing number was lost. The row stays.
-- index: named_lock_pkey
UPDATE named_lock SET holder = NULL, expires_at = clock_timestamp() WHERE name = $1::text AND holder = $2::uuid
