-- postpone: the leader has looked at a batch that has not ended
-- in: $1 uuid batch
-- in: $2 double precision seconds until it looks again
-- out: batch uuid
-- move: nothing
-- fence: the state: an ended batch is not looked at again
-- index: batch_pkey, batch_look
UPDATE batch SET look_at = clock_timestamp() + make_interval(secs => $2::double precision)
WHERE id = $1::uuid AND look_at IS NOT NULL
RETURNING id AS batch
