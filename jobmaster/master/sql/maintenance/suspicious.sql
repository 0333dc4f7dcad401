-- suspicious: evidence that ownership or a store is not what it should be
-- in: $1 integer different minutes of an hour with losses from which a store is suspicious (0: never)
-- out: kind text (two_owners or store_losses), subject text, buckets uuid[] (ACTIVE ones that are concerned), detail text
-- move: nothing
-- fence: none, it reads
-- index: bucket_event_bucket for the few lines of each live bucket; the tables of buckets and of losses are small
SELECT 'two_owners' AS kind, b.id::text AS subject, ARRAY[b.id] AS buckets,
       format('agent %s owns it under epoch %s, and agent %s acted under that epoch', b.owner, b.epoch, e.actor) AS detail
FROM bucket b
CROSS JOIN LATERAL (
    SELECT min(v.actor::text) AS actor
    FROM bucket_event v
    WHERE v.bucket_id = b.id AND v.epoch = b.epoch AND v.to_state IN ('ACTIVE', 'COMPLETING', 'DRAINING')
      AND v.actor IS NOT NULL AND v.actor <> b.owner
) e
WHERE b.state IN ('ACTIVE', 'COMPLETING', 'DRAINING', 'FROZEN') AND e.actor IS NOT NULL
UNION ALL
SELECT 'store_losses', l.store,
       ARRAY (SELECT b.id FROM bucket b WHERE b.store = l.store AND b.state = 'ACTIVE' ORDER BY b.id),
       format('the store lost %s buckets in %s different minutes of an hour, the last: %s', l.losses, l.minutes, l.reason)
FROM (
    SELECT s.store, count(*) AS losses, count(DISTINCT date_trunc('minute', s.at)) AS minutes,
           (array_agg(s.reason ORDER BY s.at DESC))[1] AS reason
    FROM store_loss s
    WHERE s.at > clock_timestamp() - interval '1 hour' AND $1::integer > 0
    GROUP BY s.store
) l
WHERE l.minutes >= $1::integer
ORDER BY kind, subject
