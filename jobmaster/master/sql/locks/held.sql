-- held: locks that have a holder
-- in: $1 integer limit
-- in: $2 text name, NULL = all
-- out: name text, label text, fence bigint, acquired_at timestamptz, expires_at timestamptz
-- move: nothing
-- fence: none
-- index: named_lock_held; named_lock_pkey for a name
SELECT name, label, fence, acquired_at, expires_at FROM named_lock
WHERE holder IS NOT NULL AND expires_at >= clock_timestamp() AND ($2::text IS NULL OR name = $2)
ORDER BY name
LIMIT $1::integer
