-- forget_locks: rows of locks that have been free for long
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: a lock whose last holder has expired so long ago by this server's clock. Numbers come from a sequence, so the next holder of
--        the name still gets a higher one.
-- index: named_lock_pkey, in order
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT l.name FROM named_lock l
    WHERE l.expires_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
    ORDER BY l.name
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM named_lock l USING old WHERE l.name = old.name RETURNING l.name
)
SELECT count(*) AS forgotten FROM gone
