-- begin: the holder of an action's lock begins to run it
-- in: $1 text name
-- in: $2 text version
-- in: $3 text name of its lock
-- in: $4 bigint fence
-- out: fence bigint (no row: the caller is not the holder any more)
-- move: nothing
-- fence: the lock's row, locked FOR SHARE, has the caller's fencing number
-- index: named_lock_pkey, once_attempt_pkey
WITH held AS MATERIALIZED (
    SELECT label FROM named_lock WHERE name = $3::text AND fence = $4::bigint AND holder IS NOT NULL FOR SHARE
)
INSERT INTO once_attempt AS a (name, version, lock_name, fence, label)
SELECT $1::text, $2::text, $3, $4, label FROM held
ON CONFLICT (name, version) DO UPDATE
SET lock_name = EXCLUDED.lock_name, fence = EXCLUDED.fence, label = EXCLUDED.label, error = NULL, changed_at = clock_timestamp()
RETURNING fence
