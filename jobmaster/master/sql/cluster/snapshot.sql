-- snapshot: what a statement sees at this moment: every transaction but those that run, and later ones
-- in: nothing
-- out: at timestamptz (before it was taken), lowest bigint (number of the oldest transaction that runs), running bigint[]
-- move: nothing
-- fence: none
-- index: none
SELECT statement_timestamp() AS at, pg_snapshot_xmin(seen)::text::bigint AS lowest,
       ARRAY(SELECT number::text::bigint FROM pg_snapshot_xip(seen) AS number) AS running
FROM (SELECT pg_current_snapshot() AS seen OFFSET 0) AS look
