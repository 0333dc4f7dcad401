-- export_snapshot: exports the snapshot of this transaction, with the begin of the oldest open write in it
-- in: nothing
-- out: snapshot text, as_of_us bigint (microseconds since 1970; what changed before it is in the snapshot)
-- move: nothing
-- fence: the caller's transaction, REPEATABLE READ
-- index: none
SELECT pg_export_snapshot() AS snapshot,
       to_us(CASE WHEN pg_is_in_recovery()
                  -- A standby does not know the open writes of the primary; none of ours lasts for an hour.
                  THEN coalesce(pg_last_xact_replay_timestamp(), to_timestamp(0)) - interval '1 hour'
                  ELSE least(clock_timestamp(), (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL))
             END) AS as_of_us
