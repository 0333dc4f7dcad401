-- I6: one owner per (bucket, epoch).
-- in:    $1 evidence rows
-- out:   subject (bucket id), detail, total
-- why:   every step of a bucket is written with its owner of that epoch (but for an operator's freezing): two of them
--        under one epoch, or an owner on the row that is not the one that made or took it under its epoch.
-- index: bucket_event (bucket_id, seq).
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT bucket_id AS subject, format('%s owners acted under epoch %s', count(DISTINCT actor), epoch) AS detail
    FROM bucket_event
    WHERE to_state <> 'FROZEN' AND actor IS NOT NULL
    GROUP BY bucket_id, epoch
    HAVING count(DISTINCT actor) > 1
    UNION ALL
    SELECT b.id, format('owned by %s with epoch %s, which was taken by %s', b.owner, b.epoch, e.actor)
    FROM bucket b
    JOIN bucket_event e ON e.bucket_id = b.id AND e.epoch = b.epoch
    WHERE e.to_state IN ('ACTIVE', 'DRAINING') AND e.actor IS NOT NULL AND e.actor <> b.owner
) found
ORDER BY subject
LIMIT $1::int
