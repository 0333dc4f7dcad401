-- put_back: jobs that were put off get their own due time back once an owner of a matching bucket has their handler, and
--          neither that nor the tag of its line is paused. A job with another paused tag is put off again with the next look
-- in: $1 integer limit
-- out: moved bigint
-- move: nothing
-- fence: compare-and-set on the due time that was given: a job that has run since, or was changed, only loses its line.
--        FOR UPDATE SKIP LOCKED on the lines: two of these share them
-- index: put_off_cause, one probe for each kind and the lines of those that are served; job_pkey, one partition a row
WITH RECURSIVE kinds AS (
    (SELECT lane, priority, handler, tag FROM put_off ORDER BY lane, priority, handler, tag LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority, next.handler, next.tag
    FROM kinds k, LATERAL (
        SELECT lane, priority, handler, tag FROM put_off
        WHERE (lane, priority, handler, tag) > (k.lane, k.priority, k.handler, k.tag)
        ORDER BY lane, priority, handler, tag LIMIT 1
    ) AS next
), served AS MATERIALIZED (
    SELECT k.lane, k.priority, k.handler, k.tag FROM kinds k
    WHERE EXISTS (
        SELECT FROM bucket b JOIN agent a ON a.id = b.owner
        WHERE b.lane = k.lane AND b.priority = k.priority AND b.state = 'ACTIVE' AND a.state = 'ACTIVE'
          AND k.handler = ANY (a.handlers)
    ) AND NOT EXISTS (
        SELECT FROM pause p
        WHERE (p.kind, p.value) IN (('handler', k.handler), ('tag', k.tag)) AND (p.until IS NULL OR p.until > clock_timestamp())
    ) AND NOT EXISTS (
        SELECT FROM breaker_handler h JOIN breaker o ON o.name = h.breaker
        WHERE h.handler = k.handler AND o.state = 'OPEN' AND (o.until IS NULL OR o.until > clock_timestamp())
    )
), lines AS MATERIALIZED (
    SELECT p.job_id, p.due_at, p.until
    FROM put_off p JOIN served s ON s.lane = p.lane AND s.priority = p.priority AND s.handler = p.handler AND s.tag = p.tag
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
