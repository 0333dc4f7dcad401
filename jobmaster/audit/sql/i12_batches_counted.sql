-- I12: the counters of a batch equal a recount, and its callbacks are those of its end.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (batch), detail, total
-- why:   the statement that ends a batch counts its jobs, and an ended job stays ended. So a recount of a batch that has ended
--        with its last job gives the same; after an end before that (it has a reason) the counts only grow. A callback becomes a
--        job in the same statement. Batches with jobs in ranges that were dropped cannot be counted again.
-- index: batch_ended; one range of job_pkey for each range of a batch; batch_callback_pkey, job_pkey for each callback
WITH ended AS MATERIALIZED (
    SELECT * FROM batch WHERE ended_at IS NOT NULL AND id >= $2::uuid AND id >= dropped_below()
)
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT b.id::text AS subject,
           format('its counters are %s/%s/%s/%s (succeeded/failed/cancelled/expired), and its jobs %s/%s/%s/%s with %s unfinished',
                  b.succeeded, b.failed, b.cancelled, b.expired, c.succeeded, c.failed, c.cancelled, c.expired,
                  c.held + c.in_flight) AS detail
    FROM ended b CROSS JOIN LATERAL batch_count(b.id) c
    WHERE CASE WHEN b.reason = ''
               THEN (c.succeeded, c.failed, c.cancelled, c.expired, c.held + c.in_flight)
                    <> (b.succeeded, b.failed, b.cancelled, b.expired, 0)
               ELSE c.succeeded < b.succeeded OR c.failed < b.failed OR c.cancelled < b.cancelled OR c.expired < b.expired END
    UNION ALL
    SELECT b.id::text, format('its counters add up to %s, and its size is %s',
                              b.succeeded + b.failed + b.cancelled + b.expired + b.unfinished + b.missing, b.size)
    FROM ended b
    WHERE b.succeeded + b.failed + b.cancelled + b.expired + b.unfinished + b.missing <> b.size
       OR (b.reason = '' AND b.unfinished + b.missing > 0)
    UNION ALL
    SELECT b.id::text, format('it is %s, and the callback of %s %s', b.state, f.occasion,
                              CASE WHEN f.job_id IS NULL THEN 'was not submitted' ELSE 'was' END)
    FROM batch b JOIN batch_callback f ON f.batch = b.id
    WHERE b.id >= $2
      AND (f.job_id IS NOT NULL) <> (b.ended_at IS NOT NULL
           AND f.occasion = ANY (CASE b.state WHEN 'SUCCEEDED' THEN '{complete,success}' WHEN 'FAILED' THEN '{complete,failure}'
                                              ELSE '{complete}' END::text[]))
    UNION ALL
    SELECT b.id::text, format('its callback of %s, job %s, does not exist', f.occasion, f.job_id)
    FROM ended b JOIN batch_callback f ON f.batch = b.id
    WHERE f.job_id >= dropped_below() AND NOT EXISTS (SELECT FROM job_kept j WHERE j.id = f.job_id)
    UNION ALL
    SELECT b.id::text, format('it has ended, and batch %s inside it has not', n.id)
    FROM ended b JOIN batch n ON n.parent = b.id
    WHERE b.reason = '' AND n.look_at IS NOT NULL
) found
ORDER BY subject
LIMIT $1::int
