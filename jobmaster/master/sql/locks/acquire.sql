-- acquire: take a named lock that is free, or read its holder
-- in: $1 text name
-- in: $2 uuid acquisition
-- in: $3 text label of the holder
-- in: $4 double precision ttl, seconds
-- out: taken boolean, name text, label text, fence bigint, acquired_at timestamptz, expires_at timestamptz (of the holder; no row:
--      another has taken it at the same moment)
-- move: nothing
-- fence: compare-and-set on the lock's row: given back, expired by this server's clock, or taken by this very acquisition, whose
--        answer was lost. Every new holder gets a new number. The number and the time are read after the row is locked.
-- index: named_lock_pkey
WITH taken AS (
    INSERT INTO named_lock AS l (name, holder, fence, label, acquired_at, expires_at)
    VALUES ($1::text, $2::uuid, nextval('lock_fence'), $3::text, clock_timestamp(),
            clock_timestamp() + make_interval(secs => $4::double precision))
    ON CONFLICT (name) DO UPDATE
    SET holder = EXCLUDED.holder, label = EXCLUDED.label,
        fence = CASE WHEN l.holder = EXCLUDED.holder THEN l.fence ELSE nextval('lock_fence') END,
        acquired_at = CASE WHEN l.holder = EXCLUDED.holder THEN l.acquired_at ELSE clock_timestamp() END,
        expires_at = clock_timestamp() + make_interval(secs => $4)
    WHERE l.holder IS NULL OR l.holder = EXCLUDED.holder OR l.expires_at < clock_timestamp()
    RETURNING name, label, fence, acquired_at, expires_at
)
SELECT true AS taken, name, label, fence, acquired_at, expires_at FROM taken
UNION ALL
SELECT false, name, label, fence, acquired_at, expires_at FROM named_lock
WHERE name = $1 AND holder IS NOT NULL AND expires_at >= clock_timestamp() AND NOT EXISTS (SELECT FROM taken)
