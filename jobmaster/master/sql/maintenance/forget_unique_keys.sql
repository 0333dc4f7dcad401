-- forget_unique_keys: unique keys that have been free for long
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: the row is locked and was taken that long ago: a key that is held by then is left alone. While the cluster moves to another
--        master, a job that has MOVED holds its key
-- index: unique_key_held_at for the old ones; unique_key_pkey, job_pkey
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT u.handler, u.key FROM unique_key u
    WHERE u.held_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND (u.until < clock_timestamp()
           OR u.until IS NULL AND NOT EXISTS (
               SELECT FROM job j WHERE j.id = u.job_id AND j.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
               AND (j.state <> 'MOVED' OR (SELECT mode FROM cluster) = 'migrating')))
    LIMIT $2::integer
    FOR UPDATE OF u SKIP LOCKED
), gone AS (
    DELETE FROM unique_key u USING old WHERE u.handler = old.handler AND u.key = old.key RETURNING u.key
)
SELECT count(*) AS forgotten FROM gone
