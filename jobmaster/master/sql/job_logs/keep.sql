-- keep: lines that runs of some jobs have written; the lines beyond the bounds go
-- in: $1 uuid[] jobs
-- in: $2 integer[] tokens of the runs
-- in: $3 integer[] numbers of the lines in their runs
-- in: $4 bigint[] times of the agent, microseconds since 1970
-- in: $5 smallint[] levels
-- in: $6 text[] texts
-- in: $7 uuid[] jobs of runs with too many lines
-- in: $8 integer[] tokens of these runs
-- in: $9 integer[] numbers of their first lines that are kept
-- in: $10 uuid[] jobs with too many runs
-- in: $11 integer[] tokens up to which their runs go
-- out: nothing
-- move: nothing
-- fence: none: a superseded run writes lines under its own token. A line that is sent again is there already. What another
--        statement deletes is skipped, so two agents with runs of one job do not wait for each other
-- index: job_log_pkey
WITH surplus AS MATERIALIZED (
    SELECT l.job_id, l.token, l.number
    FROM unnest($7::uuid[], $8::integer[], $9::integer[]) AS run (job_id, token, lowest)
         JOIN job_log l ON l.job_id = run.job_id AND l.token = run.token AND l.number < run.lowest
    FOR UPDATE OF l SKIP LOCKED
), old AS MATERIALIZED (
    SELECT l.job_id, l.token, l.number
    FROM unnest($10::uuid[], $11::integer[]) AS run (job_id, token)
         JOIN job_log l ON l.job_id = run.job_id AND l.token <= run.token
    FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM job_log l USING (SELECT * FROM surplus UNION ALL SELECT * FROM old) AS one
    WHERE l.job_id = one.job_id AND l.token = one.token AND l.number = one.number
)
INSERT INTO job_log (job_id, token, number, at, level, text)
SELECT job_id, token, number, from_us(at_us), level, text
FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::smallint[], $6::text[])
     AS new (job_id, token, number, at_us, level, text)
ORDER BY job_id, token, number
ON CONFLICT DO NOTHING
