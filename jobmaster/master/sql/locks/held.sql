-- held: locks that have a holder
-- in: $1 integer limit
-- out: name text, label text, fence bigint, acquired_at timestamptz, expires_at timestamptz
-- move: nothing
-- fence: none
-- index: named_lock_held
SELECT name, label, fence, acquired_at, expires_at FROM named_lock
WHERE holder IS NOT NULL AND expires_at >= clock_timestamp()
ORDER BY name
LIMIT $1::integer
