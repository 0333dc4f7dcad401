-- I3: tokens and epochs only grow.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (bucket or job id), detail, total
-- why:   a bucket's events in order of their number, the bucket's row behind the last of them, and a row that waits or
--        runs behind an attempt it made before.
-- index: bucket_event (bucket_id, seq); primary keys of job and attempt.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT bucket_id AS subject, format('epoch %s after %s in its events', epoch, before) AS detail
    FROM (
        SELECT bucket_id, epoch, lag(epoch) OVER (PARTITION BY bucket_id ORDER BY seq) AS before FROM bucket_event
    ) steps
    WHERE epoch < before
    UNION ALL
    SELECT b.id, format('epoch %s on the row, %s in its events', b.epoch, e.highest)
    FROM bucket b
    JOIN (SELECT bucket_id, max(epoch) AS highest FROM bucket_event GROUP BY bucket_id) e ON e.bucket_id = b.id
    WHERE b.epoch < e.highest
    UNION ALL
    SELECT j.id, format('%s with epoch %s of bucket %s, which has only reached %s', j.state, j.bucket_epoch, b.id, b.epoch)
    FROM job j
    JOIN bucket b ON b.id = j.bucket_id
    WHERE j.id >= $2::uuid AND j.bucket_epoch > b.epoch
    UNION ALL
    SELECT j.id, format('%s with token %s after an attempt with token %s', j.state, j.token, max(a.token))
    FROM job j
    JOIN attempt a ON a.job_id = j.id
    WHERE j.id >= $2::uuid AND a.job_id >= $2::uuid AND a.outcome <> 'refused'
      AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
    GROUP BY j.id, j.state, j.token
    HAVING max(a.token) > j.token
) found
ORDER BY subject
LIMIT $1::int
