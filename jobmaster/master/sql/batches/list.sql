-- list: batches, the newest first
-- in: $1 uuid batch, or any range of it, NULL = all
-- in: $2 text[] states, empty = all
-- in: $3 text name, NULL = any
-- in: $4 uuid the batches before this one, NULL = from the newest
-- in: $5 integer limit
-- in: $6 uuid the batch whose failed jobs they run again, NULL = any
-- in: $7 text key, NULL = any
-- out: id uuid, parent uuid, retry_of uuid, name text, key text, description text, state text, size bigint, nested bigint, reason text, cancel_requested boolean, created_us bigint, closed_us bigint, ended_us bigint, expires_us bigint, succeeded bigint, failed bigint, cancelled bigint, expired bigint, unfinished bigint, missing bigint, tallied bigint, ranges uuid[], callbacks text[], callback_jobs uuid[]
-- move: nothing
-- fence: none
-- index: batch_pkey backwards; batch_parent, batch_range_batch, batch_tally_pkey, batch_callback_pkey
SELECT b.id, b.parent, b.retry_of, b.name, b.key, b.description, b.state, b.size,
       (SELECT count(*) FROM batch n WHERE n.parent = b.id) AS nested, b.reason, b.cancel_requested,
       to_us(b.created_at) AS created_us, to_us(b.closed_at) AS closed_us, to_us(b.ended_at) AS ended_us,
       to_us(b.expires_at) AS expires_us, b.succeeded, b.failed, b.cancelled, b.expired, b.unfinished, b.missing,
       (SELECT coalesce(sum(t.ended), 0)::bigint FROM batch_range r JOIN batch_tally t ON t.lo = r.lo WHERE r.batch = b.id)
       AS tallied,
       ARRAY (SELECT r.lo FROM batch_range r WHERE r.batch = b.id ORDER BY r.lo) AS ranges,
       ARRAY (SELECT c.occasion FROM batch_callback c WHERE c.batch = b.id ORDER BY c.occasion) AS callbacks,
       ARRAY (SELECT c.job_id FROM batch_callback c WHERE c.batch = b.id ORDER BY c.occasion) AS callback_jobs
FROM batch b
WHERE ($1::uuid IS NULL OR b.id = (SELECT r.batch FROM batch_range r WHERE r.lo = $1)) AND (cardinality($2::text[]) = 0 OR b.state = ANY ($2))
  AND ($3::text IS NULL OR b.name = $3) AND ($6::uuid IS NULL OR b.retry_of = $6) AND ($7::text IS NULL OR b.key = $7) AND ($4::uuid IS NULL OR b.id < $4)
ORDER BY b.id DESC
LIMIT $5::integer
