-- I8: once it has been quiet for longer than a lease, nothing is in flight without a live agent.
-- in:    $1 evidence rows, $2 seconds of quiet: younger rows are not checked
-- out:   subject (job id), detail, total
-- why:   its (bucket, epoch) must be a bucket of an agent whose lease runs; an older epoch is one from before
--        a freeze, and the owner ends that job or gives it back.
-- index: job_by_bucket, bucket_event_bucket.
SELECT j.id AS subject,
       format('%s since %s in bucket %s epoch %s: %s', j.state, j.changed_at, j.bucket_id, j.bucket_epoch,
              CASE
                  WHEN b.id IS NULL THEN 'there is no such bucket'
                  WHEN b.epoch <> j.bucket_epoch AND NOT unfrozen THEN format('the bucket has epoch %s', b.epoch)
                  WHEN b.state NOT IN ('ACTIVE', 'COMPLETING', 'DRAINING', 'FROZEN') THEN format('the bucket is %s', b.state)
                  ELSE format('its owner %s is not alive', b.owner)
              END) AS detail,
       count(*) OVER () AS total
FROM job j
LEFT JOIN bucket b ON b.id = j.bucket_id
LEFT JOIN agent a ON a.id = b.owner
CROSS JOIN LATERAL (
    SELECT b.epoch > j.bucket_epoch
           AND EXISTS (SELECT FROM bucket_event e
                       WHERE e.bucket_id = b.id AND e.from_state = 'FROZEN' AND e.to_state = 'ACTIVE'
                         AND e.epoch > j.bucket_epoch) AS unfrozen
) AS frozen_before
WHERE j.state IN ('ASSIGNED', 'PROCESSING')
  AND j.changed_at < clock_timestamp() - make_interval(secs => $2::double precision)
  AND (b.id IS NULL OR b.epoch <> j.bucket_epoch AND NOT unfrozen OR b.state NOT IN ('ACTIVE', 'COMPLETING', 'DRAINING', 'FROZEN')
       OR a.id IS NULL OR a.state NOT IN ('ACTIVE', 'STOPPING')
       OR a.lease_until < clock_timestamp() - make_interval(secs => $2::double precision))
ORDER BY j.id
LIMIT $1::int
