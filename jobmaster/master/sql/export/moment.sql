-- moment: a snapshot for others to share, and since when somebody is still writing
-- in: nothing
-- out: snapshot text, as_of_us bigint (microseconds since 1970; what changed before it is in the snapshot)
-- move: nothing
-- fence: the caller's transaction, REPEATABLE READ
-- index: none
SELECT pg_export_snapshot() AS snapshot,
       to_us(least(clock_timestamp(), (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL))) AS as_of_us
