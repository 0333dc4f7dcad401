-- forget_batches: batches that ended long ago, with all that belongs to them; their jobs stay
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: an ended batch never changes; one whose parent has not ended is kept, for the parent counts it
-- index: batch_ended in order up to the limit; batch_range_batch, batch_tally_pkey, batch_dropped_pkey, batch_callback_pkey
WITH old AS MATERIALIZED (
    SELECT b.id FROM batch b
    WHERE b.ended_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND NOT EXISTS (SELECT FROM batch p WHERE p.id = b.parent AND p.look_at IS NOT NULL)
    ORDER BY b.ended_at
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), ranges AS (
    DELETE FROM batch_range r USING old o WHERE r.batch = o.id RETURNING r.lo
), tallies AS (
    DELETE FROM batch_tally t USING ranges r WHERE t.lo = r.lo
), dropped AS (
    DELETE FROM batch_dropped d USING ranges r WHERE d.lo = r.lo
), callbacks AS (
    DELETE FROM batch_callback c USING old o WHERE c.batch = o.id
), gone AS (
    DELETE FROM batch b USING old o WHERE b.id = o.id RETURNING b.id
)
SELECT count(*) AS forgotten FROM gone
