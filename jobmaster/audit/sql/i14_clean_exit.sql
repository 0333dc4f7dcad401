-- I14: a clean exit causes no rescue.
-- in:    $1 evidence rows
-- out:   subject (bucket id), detail, total
-- why:   an owner declared a bucket LOST that it had emptied and closed (the leader, which finds that the keys of such a
--        bucket hold jobs again, writes no actor); or an owner left as RETIRED, yet the bucket that it owned at that moment
--        was LOST out of its COMPLETING, or after the exit. The actor of the event is that owner: a rescuer that dies while
--        it drains a bucket does not concern the exit of the agent that made the bucket.
-- index: primary key of agent; the events are read once.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT bucket_id AS subject, format('LOST out of READY_TO_DELETE (%s) by its owner %s', reason, actor) AS detail
    FROM bucket_event
    WHERE to_state = 'LOST' AND from_state = 'READY_TO_DELETE' AND actor IS NOT NULL
    UNION ALL
    SELECT e.bucket_id, format('LOST out of %s (%s) although agent %s left cleanly', e.from_state, e.reason, a.id)
    FROM bucket_event e
    JOIN agent a ON a.id = e.actor
    WHERE e.to_state = 'LOST' AND a.state = 'RETIRED' AND e.from_state IS DISTINCT FROM 'READY_TO_DELETE'
      AND (e.from_state = 'COMPLETING' OR e.at >= a.ended_at)
) found
ORDER BY subject
LIMIT $1::int
