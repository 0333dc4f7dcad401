-- receive_signals: jobs of another cluster that wait, and have just come here, receive what is kept for their keys
-- in: $1 uuid[] jobs, in the order of their ids
-- in: $2 text[] keys, locked by this transaction
-- out: nothing
-- move: WAITING -> HELD
-- fence: the locks of the keys; the rows, which still wait. A kept signal for one job is taken by a compare-and-set
-- index: job_pkey, signal_kept
SELECT receive_kept($1::uuid[], $2::text[], true)
