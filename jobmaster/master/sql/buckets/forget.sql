-- forget: tombstones older than any cached list of buckets
-- in: $1 double precision age, seconds
-- in: $2 text[] stores
-- in: $3 boolean true: of these stores; false: of every other store
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: nothing
-- fence: none; dropping looks again
-- index: none; the table is small
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at
FROM bucket
WHERE state = 'READY_TO_DELETE' AND (store = ANY ($2::text[])) = $3::boolean
  AND changed_at < clock_timestamp() - make_interval(secs => $1::double precision)
ORDER BY changed_at
LIMIT 1000
