-- forget_bucket_events: the history of buckets that are gone, and what stores have lost
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: of a bucket that has a row every event stays: they record unfreezing and the epochs that were given out
-- index: bucket_event_pkey, in order; bucket_pkey
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT e.seq FROM bucket_event e
    WHERE e.at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND NOT EXISTS (SELECT FROM bucket b WHERE b.id = e.bucket_id)
    ORDER BY e.seq
    LIMIT $2::integer
    FOR UPDATE OF e SKIP LOCKED
), gone AS (
    DELETE FROM bucket_event e USING old WHERE e.seq = old.seq RETURNING e.seq
), losses AS (
    DELETE FROM store_loss WHERE at < clock_timestamp() - make_interval(secs => $1 * 86400)
)
SELECT count(*) AS forgotten FROM gone
