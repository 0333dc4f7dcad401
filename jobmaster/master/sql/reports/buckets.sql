-- buckets: buckets with their owners
-- in: $1 boolean true: tombstones too
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, owner_name text,
--      owner_state text, owner_leased boolean, changed_us bigint, unchanged_seconds double precision
-- move: nothing
-- fence: none
-- index: none; there are few buckets
SELECT b.id, b.store, b.lane, b.priority, b.state::text AS state, b.epoch, b.owner, a.name AS owner_name,
       a.state::text AS owner_state, COALESCE(a.lease_until > clock_timestamp(), false) AS owner_leased,
       (extract(epoch FROM b.changed_at) * 1000000)::bigint AS changed_us,
       extract(epoch FROM clock_timestamp() - b.changed_at)::double precision AS unchanged_seconds
FROM bucket b
LEFT JOIN agent a ON a.id = b.owner
WHERE $1::boolean OR b.state <> 'READY_TO_DELETE'
ORDER BY b.lane, b.priority DESC, b.store, b.id
