-- ahead: how many jobs of a lane and priority that wait in the master are due before a time
-- in: $1 text lane
-- in: $2 smallint priority
-- in: $3 bigint due time, microseconds since 1970
-- in: $4 integer jobs that it counts at most
-- out: jobs bigint
-- move: nothing
-- fence: none
-- index: job_due
SELECT count(*) AS jobs FROM (
    SELECT FROM job
    WHERE state = 'HELD' AND lane = $1::text AND priority = $2::smallint AND due_at < from_us($3::bigint)
    LIMIT $4::integer
) AS before
