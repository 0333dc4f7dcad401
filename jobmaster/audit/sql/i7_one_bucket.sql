-- I7: no job names two buckets, and none a bucket of another lane or priority.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (job id), detail, total
-- why:   HELD means no bucket at all; in flight means exactly one; a second unfinished row of an id would be a second
--        assignment.
-- index: primary key of job; one pass from $2 on.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT id AS subject, format('%s rows that are not final', count(*)) AS detail
    FROM job
    WHERE id >= $2::uuid AND state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
    GROUP BY id
    HAVING count(*) > 1
    UNION ALL
    SELECT id, 'HELD, but names bucket ' || COALESCE(bucket_id::text, 'epoch ' || bucket_epoch)
    FROM job
    WHERE id >= $2::uuid AND state = 'HELD' AND (bucket_id IS NOT NULL OR bucket_epoch IS NOT NULL)
    UNION ALL
    SELECT id, format('%s, but names no bucket with epoch', state)
    FROM job
    WHERE id >= $2::uuid AND state IN ('ASSIGNED', 'PROCESSING') AND (bucket_id IS NULL OR bucket_epoch IS NULL)
    UNION ALL
    SELECT j.id, format('lane %s priority %s in bucket %s of lane %s priority %s', j.lane, j.priority, b.id, b.lane, b.priority)
    FROM job j
    JOIN bucket b ON b.id = j.bucket_id
    WHERE j.id >= $2::uuid AND j.state IN ('ASSIGNED', 'PROCESSING') AND (b.lane <> j.lane OR b.priority <> j.priority)
) found
ORDER BY subject
LIMIT $1::int
