-- full: batches of some ranges that may have ended, by the tallies of all agents
-- in: $1 uuid[] ids of the ranges, or of batches
-- out: batch uuid
-- move: nothing
-- fence: none. It is read after the commit of the tally, in a statement of its own: of two agents that write their last
--        tallies at the same time, the later one sees both.
-- index: batch_range_pkey, batch_pkey, batch_range_batch, batch_tally_pkey, batch_parent
SELECT b.id AS batch
FROM batch b
WHERE b.id = ANY (ARRAY (SELECT r.batch FROM batch_range r WHERE r.lo = ANY ($1::uuid[]))) AND b.state = 'CLOSED'
  AND b.size <= (SELECT coalesce(sum(t.ended), 0) FROM batch_range r JOIN batch_tally t ON t.lo = r.lo WHERE r.batch = b.id)
  AND NOT EXISTS (SELECT FROM batch n WHERE n.parent = b.id AND n.look_at IS NOT NULL)
ORDER BY b.id
