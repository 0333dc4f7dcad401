-- buckets: every bucket of the master
-- in: $1 text[] states, NULL = any
-- in: $2 text[] lanes, NULL = any
-- in: $3 text[] priorities, NULL = any
-- in: $4 uuid[] ids, NULL = any
-- out: id uuid, state text, store text, lane text, priority text, priority_level smallint, epoch bigint, owner uuid,
--      owner_name text, owner_state text, created_at timestamptz, changed_at timestamptz, in_flight bigint
-- move: nothing
-- fence: none, it reads; the snapshot of the caller's transaction
-- index: none, the table is small; job_by_bucket for the counts
SELECT id, state, store, lane, priority, priority_level, epoch, owner, owner_name, owner_state, created_at, changed_at,
       in_flight
FROM bucket_status
WHERE ($1::text[] IS NULL OR state = ANY ($1::text[]))
  AND ($2::text[] IS NULL OR lane = ANY ($2::text[]))
  AND ($3::text[] IS NULL OR priority = ANY ($3::text[]))
  AND ($4::uuid[] IS NULL OR id = ANY ($4::uuid[]))
