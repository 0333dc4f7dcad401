-- buckets: the buckets of the cluster in some states
-- in: $1 text[] states, empty = all
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: nothing
-- fence: none
-- index: none, all of them are read; in no order, because only commands need one (the sort was more than two thirds of the cost)
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at
FROM bucket
WHERE cardinality($1::text[]) = 0 OR state::text = ANY ($1)
