-- put_back: jobs that were put off get their own due time back once an owner of a matching bucket has their handler, and that
--          is not paused
-- in: $1 integer limit
-- out: moved bigint
-- move: nothing
-- fence: compare-and-set on the due time that was given: a job that has run since, or was changed, only loses its line.
--        FOR UPDATE SKIP LOCKED on the lines: two of these share them
-- index: put_off_kind, one probe for each kind and the lines of those that are served; job_pkey, one partition a row
WITH RECURSIVE kinds AS (
    (SELECT lane, priority, handler FROM put_off ORDER BY lane, priority, handler LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority, next.handler
    FROM kinds k, LATERAL (
        SELECT lane, priority, handler FROM put_off
        WHERE (lane, priority, handler) > (k.lane, k.priority, k.handler)
        ORDER BY lane, priority, handler LIMIT 1
    ) AS next
), served AS MATERIALIZED (
    SELECT k.lane, k.priority, k.handler FROM kinds k
    WHERE EXISTS (
        SELECT FROM bucket b JOIN agent a ON a.id = b.owner
        WHERE b.lane = k.lane AND b.priority = k.priority AND b.state = 'ACTIVE' AND a.state = 'ACTIVE'
          AND k.handler = ANY (a.handlers)
    ) AND NOT EXISTS (
        SELECT FROM pause p
        WHERE p.kind = 'handler' AND p.value = k.handler AND (p.until IS NULL OR p.until > clock_timestamp())
    )
), lines AS MATERIALIZED (
    SELECT p.job_id, p.due_at, p.until
    FROM put_off p JOIN served s ON s.lane = p.lane AND s.priority = p.priority AND s.handler = p.handler
    LIMIT $1::integer
    FOR UPDATE OF p SKIP LOCKED
), moved AS (
    UPDATE job j SET due_at = l.due_at
    FROM lines l
    WHERE j.id = l.job_id AND j.state = 'HELD' AND j.due_at = l.until
), gone AS (
    DELETE FROM put_off p USING lines l WHERE p.job_id = l.job_id
    RETURNING p.job_id
)
SELECT count(*) AS moved FROM gone
