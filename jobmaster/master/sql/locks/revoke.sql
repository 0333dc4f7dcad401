-- revoke: an operator takes a lock from its holder, which reads that with its next renewal
-- in: $1 text name
-- in: $2 text the actor
-- out: name text, label text, fence bigint, acquired_at timestamptz, expires_at timestamptz (as they were; no row: the lock is free)
-- move: nothing
-- fence: the lock's row is locked, and held by this server's clock
-- index: named_lock_pkey
WITH held AS MATERIALIZED (
    SELECT name, label, fence, acquired_at, expires_at FROM named_lock
    WHERE name = $1::text AND holder IS NOT NULL AND expires_at >= clock_timestamp()
    FOR UPDATE
), revoked AS (
    UPDATE named_lock l SET holder = NULL, expires_at = clock_timestamp() FROM held WHERE l.name = held.name RETURNING held.*
), noted AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $2::text, 'lock release', name, jsonb_build_object('holder', label, 'fence', fence) FROM revoked
)
SELECT name, label, fence, acquired_at, expires_at FROM revoked
