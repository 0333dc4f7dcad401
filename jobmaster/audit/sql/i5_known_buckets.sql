-- I5, buckets: every bucket of the master, in any state.
-- in:    nothing
-- out:   id, store
-- why:   no agent would find the entries of a bucket in a store that has no row here.
-- index: none; there are few buckets.
SELECT id, store FROM bucket
