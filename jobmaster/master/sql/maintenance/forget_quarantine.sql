-- forget_quarantine: old entries of the quarantine; those of the jobs of a batch stay as long as the batch, which counts them
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: none; the oldest first
-- index: quarantine_pkey, in order; batch_range_pkey
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT seq FROM quarantine q
    WHERE NOT EXISTS (SELECT FROM batch_range r WHERE r.lo = batch_range_of(q.job_id))
    ORDER BY seq LIMIT $2::integer FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM quarantine t
    USING old
    WHERE t.seq = old.seq AND t.at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
    RETURNING t.seq
)
SELECT count(*) AS forgotten FROM gone
