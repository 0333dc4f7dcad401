-- forget_workflows: workflows that ended longer ago than their retention, with their steps
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: SKIP LOCKED; one that is retried meanwhile has no end, which is read again under the lock
-- index: workflow_ended_at, oldest first; workflow_pkey
WITH old AS MATERIALIZED (
    SELECT id FROM workflow
    WHERE ended_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
    ORDER BY ended_at
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM workflow w USING old WHERE w.id = old.id RETURNING w.id
)
SELECT count(*) AS forgotten FROM gone
