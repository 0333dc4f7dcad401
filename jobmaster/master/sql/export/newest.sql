-- newest: the first transaction that has not begun, and for how long the oldest open write holds streams up
-- in: nothing
-- out: xid bigint, oldest_write_seconds bigint (0: there is none, or its session is hidden from this role),
--      now_us bigint (microseconds since 1970)
-- move: nothing
-- fence: none, it reads; shown as progress, and no offset
-- index: none
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid,
       coalesce(extract(epoch FROM clock_timestamp() - (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL)),
                0)::bigint AS oldest_write_seconds,
       to_us(clock_timestamp()) AS now_us
