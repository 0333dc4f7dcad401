-- ended_batches: batches that have ended with their last job, with their counters
-- in: $1 bigint that ended before, microseconds since 1970
-- out: id uuid, created_us bigint, succeeded bigint, failed bigint, cancelled bigint, expired bigint, ranges uuid[]
-- move: nothing
-- fence: none, it reads; what has ended does not change
-- index: batch_ended, batch_range_batch
SELECT b.id, to_us(b.created_at) AS created_us, b.succeeded, b.failed, b.cancelled, b.expired,
       ARRAY (SELECT r.lo FROM batch_range r WHERE r.batch = b.id ORDER BY r.lo) AS ranges
FROM batch b
WHERE b.ended_at < from_us($1::bigint) AND b.reason = ''
