-- note_loss: a bucket that its store has lost, and what became of the jobs in it that had no row
-- in: $1 uuid bucket
-- in: $2 bigint its epoch
-- in: $3 text store
-- in: $4 integer jobs that its owner last saw in it and had no copy of
-- in: $5 integer jobs that its owner had a copy of and wrote to the master
-- in: $6 text reason
-- out: nothing
-- move: nothing
-- fence: one line per bucket and epoch: sent again, nothing is added
-- index: store_loss_pkey, as the arbiter
INSERT INTO store_loss (bucket_id, epoch, store, at_risk, salvaged, reason)
VALUES ($1::uuid, $2::bigint, $3::text, $4::integer, $5::integer, $6::text)
ON CONFLICT (bucket_id, epoch) DO NOTHING
