-- forget_moved: rows of jobs that the master of another cluster has leave an archived cluster
-- in: $1 timestamptz those that moved before it
-- in: $2 uuid ids above it
-- in: $3 integer rows to look at
-- out: forgotten bigint, last uuid (of the rows that were looked at; NULL: there are none)
-- move: nothing
-- fence: the mode, locked until the commit: an archived cluster has no open bucket and takes no row, so nothing writes a job that is
--        gone; the note of the move: a page that may be in both masters needs its rows. No range is on its way out of job
-- index: job_pkey; each row is read once
WITH archived AS MATERIALIZED (
    SELECT 1 FROM cluster c
    WHERE c.mode = 'archived' AND NOT EXISTS (SELECT FROM cluster_move m WHERE m.page <> '{}')
      AND NOT EXISTS (SELECT FROM passed_signal) AND NOT EXISTS (SELECT FROM retirement)
    FOR SHARE OF c
), looked AS MATERIALIZED (
    SELECT j.id, j.state, j.changed_at FROM job j
    WHERE j.id > $2::uuid AND EXISTS (SELECT FROM archived)
    ORDER BY j.id
    LIMIT $3::integer
), old AS MATERIALIZED (
    SELECT id FROM looked WHERE state = 'MOVED' AND changed_at < $1::timestamptz
), lines AS (
    DELETE FROM attempt a USING old WHERE a.job_id = old.id
), gone AS (
    DELETE FROM job j USING old WHERE j.id = old.id AND j.state = 'MOVED' RETURNING j.id
)
SELECT (SELECT count(*) FROM gone) AS forgotten, (SELECT id FROM looked ORDER BY id DESC LIMIT 1) AS last
