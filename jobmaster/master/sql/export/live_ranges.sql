-- live_ranges: ranges of ids of the jobs in the master, with a text that is another one when a row of their jobs or attempts was written since
-- in: nothing
-- out: low_us bigint (NULL: from the lowest id on), high_us bigint (itself outside), written text (NULL: the server does not know),
--      read_us bigint (the present moment)
-- move: nothing
-- fence: none. The counters are those of the server's statistics: a session sends its part within a minute after its transaction.
--        A crash and a reset set them back, and leave their time. A standby does not count what it replays
-- index: none; catalogue and statistics
WITH tables AS (
    SELECT lo, hi, to_regclass(quote_ident(name))::oid AS id
    FROM (SELECT * FROM partitions_of('job') UNION ALL SELECT * FROM partitions_of('attempt')) AS attached
    UNION ALL
    -- What was detached lies below the floor, as the attic does.
    SELECT NULL, (SELECT floor FROM watermark), inhrelid
    FROM pg_inherits WHERE inhparent IN ('job_detached'::regclass, 'attempt_detached'::regclass)
)
SELECT to_us(uuid_moment(lo)) AS low_us, to_us(uuid_moment((array_agg(hi ORDER BY hi DESC))[1])) AS high_us,
       CASE WHEN NOT pg_is_in_recovery() AND current_setting('track_counts')::boolean THEN md5(concat_ws(' ',
           string_agg(concat_ws('/', id, pg_stat_get_tuples_inserted(id), pg_stat_get_tuples_updated(id),
                                pg_stat_get_tuples_deleted(id)), ' ' ORDER BY id),
           (SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()),
           (SELECT stats_reset FROM pg_stat_bgwriter)
       )) END AS written,
       to_us(clock_timestamp()) AS read_us
FROM tables
GROUP BY lo
ORDER BY lo NULLS FIRST
