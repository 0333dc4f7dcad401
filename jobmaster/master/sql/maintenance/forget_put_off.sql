-- forget_put_off: lines of jobs that were put off and are not any more
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: only of jobs that have another due time, another state or no row: what is put off keeps its own due time
-- index: put_off_pkey, in order; job_pkey
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT p.job_id FROM put_off p
    WHERE p.until < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND NOT EXISTS (SELECT FROM job j WHERE j.id = p.job_id AND j.state = 'HELD' AND j.due_at = p.until)
    ORDER BY p.job_id
    LIMIT $2::integer
    FOR UPDATE OF p SKIP LOCKED
), gone AS (
    DELETE FROM put_off p USING old WHERE p.job_id = old.job_id RETURNING p.job_id
)
SELECT count(*) AS forgotten FROM gone
