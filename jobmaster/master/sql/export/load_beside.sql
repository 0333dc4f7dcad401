-- load_beside: what a session of an export looks at to find out whether others write
-- in: $1 text (application name of the sessions that look)
-- out: standby boolean, next_xid bigint (the transaction id after the highest one that has ended), looking bigint (sessions of that name)
-- move: nothing
-- fence: none, it reads
-- index: none
SELECT pg_is_in_recovery() AS standby,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_xid,
       (SELECT count(*)
          FROM pg_stat_activity
         WHERE application_name = $1) AS looking
