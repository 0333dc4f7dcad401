-- ended_batches: batches that have ended with their last job, with their counters
-- in: $1 timestamptz that ended before
-- out: id uuid, created_us bigint, succeeded bigint, failed bigint, cancelled bigint, expired bigint, ranges uuid[]
-- move: nothing
-- fence: none, it reads; what has ended does not change
-- index: batch_ended, batch_range_batch
SELECT b.id, to_us(b.created_at) AS created_us, b.succeeded, b.failed, b.cancelled, b.expired,
       ARRAY (SELECT r.lo FROM batch_range r WHERE r.batch = b.id ORDER BY r.lo) AS ranges
FROM batch b
WHERE b.ended_at < $1::timestamptz AND b.reason = ''
