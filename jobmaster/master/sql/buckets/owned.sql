-- owned: the buckets whose row names one agent as their owner, with its retired ones whose tombstone still stands
-- in: $1 uuid agent
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: nothing
-- fence: none; what is done about a bucket compares its epoch, owner and state
-- index: bucket_owner
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at
FROM bucket
WHERE owner = $1::uuid
