-- I14: a clean exit causes no rescue.
-- in:    $1 evidence rows
-- out:   subject (bucket id), detail, total
-- why:   an owner declared a bucket LOST that it had emptied and closed (the leader, which finds that the keys of such a
--        bucket hold jobs again, writes no actor); or the maker of a bucket left as RETIRED, yet the bucket was LOST out of
--        its COMPLETING, or after the exit.
-- index: bucket_event (bucket_id, seq); primary key of agent.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT bucket_id AS subject, format('LOST out of READY_TO_DELETE (%s) by its owner %s', reason, actor) AS detail
    FROM bucket_event
    WHERE to_state = 'LOST' AND from_state = 'READY_TO_DELETE' AND actor IS NOT NULL
    UNION ALL
    SELECT e.bucket_id, format('LOST out of %s (%s) although agent %s left cleanly', e.from_state, e.reason, a.id)
    FROM bucket_event e
    JOIN bucket_event made ON made.bucket_id = e.bucket_id AND made.from_state IS NULL AND made.to_state = 'ACTIVE'
    JOIN agent a ON a.id = made.actor
    WHERE e.to_state = 'LOST' AND a.state = 'RETIRED' AND e.from_state IS DISTINCT FROM 'READY_TO_DELETE'
      AND (e.from_state = 'COMPLETING' OR e.at >= a.ended_at)
) found
ORDER BY subject
LIMIT $1::int
