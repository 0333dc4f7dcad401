-- live_size: about how much a read of everything in the master would copy
-- in: nothing
-- out: rows bigint (jobs, by the statistics), bytes bigint (of jobs and attempts, without indexes)
-- move: nothing
-- fence: none
-- index: none; the statistics of the catalogue
SELECT coalesce(sum(greatest(c.reltuples, 0)) FILTER (WHERE i.inhparent IN ('job'::regclass, 'job_detached'::regclass)), 0)::bigint AS rows,
       coalesce(sum(pg_table_size(c.oid)), 0)::bigint AS bytes
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent IN ('job'::regclass, 'job_detached'::regclass, 'attempt'::regclass, 'attempt_detached'::regclass)
