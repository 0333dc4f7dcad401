-- forget_job_logs: logs of jobs whose rows have left the master
-- in: $1 double precision age, days, below which a log stays in any case
-- in: $2 integer limit of lines
-- out: forgotten bigint
-- move: nothing
-- fence: below the watermark no row comes into being again; the log of a job that is in the attic, or above the lowest range that
--        is not dropped yet, stays
-- index: job_log_pkey from the lowest job to the bound; job_pkey, one partition
-- One line stands for each job: the few jobs that are still there cost one look each, and not one for each of their lines.
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT least(floor, (SELECT lo FROM archive_manifest WHERE state <> 'DROPPED' ORDER BY lo LIMIT 1),
                 uuid_floor(clock_timestamp() - make_interval(secs => $1::double precision * 86400))) AS id
    FROM watermark
), logged AS (
    (SELECT job_id FROM job_log ORDER BY job_id LIMIT 1)
    UNION ALL
    SELECT (SELECT l.job_id FROM job_log l WHERE l.job_id > before.job_id ORDER BY l.job_id LIMIT 1)
    FROM logged AS before
    WHERE before.job_id < (SELECT id FROM bound)
), left_over AS MATERIALIZED (
    SELECT job_id FROM logged
    WHERE job_id < (SELECT id FROM bound) AND NOT EXISTS (SELECT FROM job j WHERE j.id = logged.job_id)
    LIMIT $2::integer
), old AS MATERIALIZED (
    SELECT l.job_id, l.token, l.number
    FROM left_over JOIN job_log l ON l.job_id = left_over.job_id
    LIMIT $2
    FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM job_log l USING old
    WHERE l.job_id = old.job_id AND l.token = old.token AND l.number = old.number
    RETURNING l.job_id
)
SELECT count(*) AS forgotten FROM gone
