-- record: an action has been done by the holder of its lock
-- in: $1 text name
-- in: $2 text version
-- in: $3 text name of its lock
-- in: $4 bigint fence
-- out: fence bigint (no row: the caller is not the holder any more, or another has done it)
-- move: nothing
-- fence: the lock's row, locked FOR SHARE, has the caller's fencing number: the next holder waits for this commit, and then reads
--        the line. Sent again, the line of the same number is returned. The line of the attempts goes.
-- index: named_lock_pkey, once_action_pkey, once_attempt_pkey
WITH held AS MATERIALIZED (
    SELECT label FROM named_lock WHERE name = $3::text AND fence = $4::bigint AND holder IS NOT NULL FOR SHARE
), done AS (
    INSERT INTO once_action AS o (name, version, fence, label)
    SELECT $1::text, $2::text, $4, label FROM held
    ON CONFLICT (name, version) DO UPDATE SET fence = o.fence WHERE o.fence = EXCLUDED.fence
    RETURNING fence
), gone AS (
    DELETE FROM once_attempt WHERE name = $1 AND version = $2 AND EXISTS (SELECT FROM done)
)
SELECT fence FROM done
