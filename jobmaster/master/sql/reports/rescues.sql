-- rescues: buckets that were lost, the latest first: when and why, the rescuer, and the result
-- in: $1 double precision seconds back from now, NULL = all
-- in: $2 boolean only those that are not over
-- in: $3 integer limit
-- out: bucket_id uuid, lane text, priority smallint, store text (these three NULL once the tombstone is gone), lost_us bigint,
--      reason text, owner uuid, owner_name text, taken_us bigint, rescuer uuid, rescuer_name text, epoch bigint,
--      over_us bigint, became text (READY_TO_DELETE, or LOST again; NULL while it goes on), jobs_moved bigint,
--      jobs_rescued bigint
-- move: nothing
-- fence: none
-- index: primary key of bucket_event backwards, bucket_event_bucket for what came next
SELECT lost.bucket_id, b.lane, b.priority, b.store,
       (extract(epoch FROM lost.at) * 1000000)::bigint AS lost_us, lost.reason,
       lost.actor AS owner, owner.name AS owner_name,
       (extract(epoch FROM taken.at) * 1000000)::bigint AS taken_us,
       taken.actor AS rescuer, rescuer.name AS rescuer_name, coalesce(taken.epoch, lost.epoch) AS epoch,
       (extract(epoch FROM over.at) * 1000000)::bigint AS over_us, over.to_state::text AS became,
       over.jobs_moved, over.jobs_rescued
FROM bucket_event lost
LEFT JOIN LATERAL (
    SELECT * FROM bucket_event e WHERE e.bucket_id = lost.bucket_id AND e.seq > lost.seq ORDER BY e.seq LIMIT 1
) taken ON taken.to_state = 'DRAINING'
LEFT JOIN LATERAL (
    SELECT * FROM bucket_event e WHERE e.bucket_id = lost.bucket_id AND e.seq > taken.seq ORDER BY e.seq LIMIT 1
) over ON true
LEFT JOIN bucket b ON b.id = lost.bucket_id
LEFT JOIN agent owner ON owner.id = lost.actor
LEFT JOIN agent rescuer ON rescuer.id = taken.actor
WHERE lost.to_state = 'LOST'
  AND ($1::double precision IS NULL OR lost.at > clock_timestamp() - make_interval(secs => $1))
  AND (NOT $2::boolean OR over.seq IS NULL)
ORDER BY lost.seq DESC
LIMIT $3::integer
