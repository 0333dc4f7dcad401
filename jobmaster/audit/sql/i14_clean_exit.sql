-- I14: a clean exit causes no rescue.
-- in:    $1 evidence rows
-- out:   subject (bucket id), detail, total
-- why:   the maker of a bucket left as RETIRED, yet the bucket was LOST out of its COMPLETING, or after the exit.
-- index: bucket_event (bucket_id, seq); primary key of agent.
SELECT e.bucket_id AS subject,
       format('LOST out of %s (%s) although agent %s left cleanly', e.from_state, e.reason, a.id) AS detail,
       count(*) OVER () AS total
FROM bucket_event e
JOIN bucket_event made ON made.bucket_id = e.bucket_id AND made.from_state IS NULL AND made.to_state = 'ACTIVE'
JOIN agent a ON a.id = made.actor
WHERE e.to_state = 'LOST' AND a.state = 'RETIRED' AND (e.from_state = 'COMPLETING' OR e.at >= a.ended_at)
ORDER BY e.bucket_id
LIMIT $1::int
