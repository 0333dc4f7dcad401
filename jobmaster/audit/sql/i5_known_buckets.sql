-- I5, buckets: every bucket that the master knows, whatever its state.
-- in:    nothing
-- out:   id, store
-- why:   entries of a bucket in a store that stands in no row here would be found by nobody.
-- index: none; there are few buckets.
SELECT id, store FROM bucket
