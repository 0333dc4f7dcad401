-- buckets: the buckets of the cluster in some states
-- in: $1 text[] states, empty = all
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: nothing
-- fence: none
-- index: none; the table is small
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at
FROM bucket
WHERE cardinality($1::text[]) = 0 OR state::text = ANY ($1)
ORDER BY store, lane, priority DESC, id
