-- forget_permits: keys of limits under which nothing has started for long, with the permits that ended there
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: a key is locked as an admission locks it, and skipped while one does. A key with a permit whose job is PROCESSING
--        stays, and so does one whose rate is not refilled: without a line it would begin with its whole burst.
-- index: limit_state_pkey, in order; permit_pkey; permit_loan_pkey; job_limit_pkey; job_pkey for each permit
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT s.name, s.key FROM limit_state s
    WHERE s.locked_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND NOT EXISTS (
        SELECT FROM permit p
        WHERE p.name = s.name AND p.key = s.key
          AND (SELECT j.state = 'PROCESSING' AND j.token = p.token FROM job j WHERE j.id = p.job_id)
      )
      AND NOT EXISTS (
        SELECT FROM job_limit d
        WHERE d.name = s.name
          AND s.tokens + coalesce(d.set_rate, d.declared_rate) * extract(epoch FROM clock_timestamp() - s.refilled_at)
              < CASE WHEN d.set_rate IS NULL THEN coalesce(d.set_burst, d.declared_burst)
                     ELSE coalesce(d.set_burst, greatest(d.set_rate, 1)) END
      )
    ORDER BY s.name, s.key
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), ended AS (
    DELETE FROM permit p USING old WHERE p.name = old.name AND p.key = old.key
), lent AS (
    DELETE FROM permit_loan o USING old WHERE o.name = old.name AND o.key = old.key AND o.permits = 0
), gone AS (
    DELETE FROM limit_state s USING old WHERE s.name = old.name AND s.key = old.key RETURNING s.key
)
SELECT count(*) AS forgotten FROM gone
