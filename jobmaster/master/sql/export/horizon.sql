-- horizon: the first transaction that may still be under way; every one below it has ended
-- in: $1 timestamptz how far a reader has come
-- out: xid bigint, system text (which server's transactions these are), now_us bigint (microseconds since 1970),
--      lost bigint (ranges with jobs that ended later than $1 and have been dropped)
-- move: nothing
-- fence: pg_snapshot_xmin, never the highest number seen: numbers are given out in one order and committed in another
-- index: none; archive_manifest is small
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid,
       (SELECT system_identifier::text FROM pg_control_system()) AS system,
       to_us(clock_timestamp()) AS now_us,
       (SELECT count(*) FROM archive_manifest WHERE state = 'DROPPED' AND ended_to > $1::timestamptz) AS lost
