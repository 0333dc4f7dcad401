-- count_runs: how many records of runs that wrote a batch forget_runs would delete
-- in: $1 double precision age in seconds, since the last sign of life
-- out: runs bigint
-- move: nothing
-- fence: none, it reads
-- index: none, the table is small
SELECT count(*) AS runs FROM pipeline_write
WHERE greatest(began_at, ended_at, seen_at) < clock_timestamp() - make_interval(secs => $1::double precision)
