-- bucket_history: what happened to one bucket, oldest first
-- in: $1 uuid bucket
-- out: at_us bigint, from_state text, to_state text, epoch bigint, actor uuid, reason text, jobs_moved bigint, jobs_rescued
--      bigint
-- move: nothing
-- fence: none
-- index: bucket_event (bucket_id, seq)
SELECT (extract(epoch FROM at) * 1000000)::bigint AS at_us, from_state::text AS from_state, to_state::text AS to_state,
       epoch, actor, reason, jobs_moved, jobs_rescued
FROM bucket_event
WHERE bucket_id = $1::uuid
ORDER BY seq
