-- export_snapshot: exports the snapshot of this transaction, with the begin of the oldest open write in it
-- in: nothing
-- out: snapshot text, as_of_us bigint (microseconds since 1970; what changed before it is in the snapshot)
-- move: nothing
-- fence: the caller's transaction, REPEATABLE READ
-- index: none
SELECT pg_export_snapshot() AS snapshot,
       to_us(least(clock_timestamp(), (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL))) AS as_of_us
