-- unfinished_runs: runs of writing that may still go on: neither ended nor older than forget_runs takes
-- in: $1 double precision age in seconds, since the last sign of life
-- out: run_id text
-- move: nothing
-- fence: none, it reads
-- index: none, the table is small
SELECT run_id FROM pipeline_write
WHERE ended_at IS NULL AND greatest(began_at, seen_at) >= clock_timestamp() - make_interval(secs => $1::double precision)
