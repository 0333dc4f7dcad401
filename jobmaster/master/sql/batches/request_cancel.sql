-- request_cancel: the jobs of a batch, and of the batches inside it, shall not start any more
-- in: $1 uuid batch
-- in: $2 text the actor
-- out: batch uuid (no row: it has ended, or does not exist)
-- move: nothing
-- fence: the one row of pause_version, locked first, as in pauses/pause: agents that see the version see the batches. A batch
--        keeps the request until it has ended.
-- index: pause_version_pkey, batch_pkey, batch_parent
WITH RECURSIVE changed AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp()))
    WHERE EXISTS (SELECT FROM batch WHERE id = $1::uuid AND look_at IS NOT NULL)
    RETURNING v.version
), covered AS (
    SELECT id FROM batch WHERE id = $1 AND look_at IS NOT NULL
    UNION
    SELECT n.id FROM covered c JOIN batch n ON n.parent = c.id WHERE n.look_at IS NOT NULL
), requested AS (
    UPDATE batch b SET cancel_requested = true, look_at = clock_timestamp()
    FROM covered c, changed WHERE b.id = c.id AND b.look_at IS NOT NULL
    RETURNING b.id
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $2::text, 'batch cancel', id::text FROM requested WHERE id = $1
)
SELECT id AS batch FROM requested ORDER BY id = $1 DESC, id
