-- forget_run_progress: lines of runs that have reported nothing for long and are over
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: the line of a job in flight stays: its run may report seldom
-- index: none for the age: each report would have to change it; the table has the lines of some days; job_pkey
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT p.job_id FROM run_progress p
    WHERE p.at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND NOT EXISTS (SELECT FROM job j WHERE j.id = p.job_id AND j.state IN ('ASSIGNED', 'PROCESSING'))
    LIMIT $2::integer
    FOR UPDATE OF p SKIP LOCKED
), gone AS (
    DELETE FROM run_progress p USING old WHERE p.job_id = old.job_id RETURNING p.job_id
)
SELECT count(*) AS forgotten FROM gone
