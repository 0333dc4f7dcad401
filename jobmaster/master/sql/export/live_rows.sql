-- live_rows: about how many jobs the master holds
-- in: nothing
-- out: rows bigint
-- move: nothing
-- fence: none
-- index: none; the statistics of the catalogue
SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint AS rows
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent IN ('job'::regclass, 'job_detached'::regclass)
