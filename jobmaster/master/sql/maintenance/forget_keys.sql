-- forget_keys: idempotency keys whose jobs have left the master long ago
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: a key lives as long as the row of its job, in job or in a range that is not dropped yet, and at least this long: below
--        the watermark no row comes into being again, so a job that only a store has keeps its key, and two jobs of one key are
--        never there at once
-- index: idempotency_age for the old ones; idempotency_pkey, job_pkey, the key of each detached range
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT k.scope, k.key FROM idempotency k
    WHERE k.created_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND k.job_id < (SELECT floor FROM watermark)
      AND NOT EXISTS (SELECT FROM job_kept j WHERE j.id = k.job_id)
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM idempotency i USING old WHERE i.scope = old.scope AND i.key = old.key RETURNING i.key
)
SELECT count(*) AS forgotten FROM gone
