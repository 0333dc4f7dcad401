-- horizon: the first transaction that may still be under way; every one below it has ended
-- in: nothing
-- out: xid bigint, system text (the server of these transactions), timeline text (grows when a standby takes over)
-- move: nothing
-- fence: pg_snapshot_xmin, never the highest number seen: numbers are assigned in one order and committed in another
-- index: none
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid,
       (SELECT system_identifier::text FROM pg_control_system()) AS system,
       CASE WHEN pg_is_in_recovery()
            THEN (SELECT lpad(upper(to_hex(timeline_id)), 8, '0') FROM pg_control_checkpoint())
            ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8)  -- a standby has none
       END AS timeline
