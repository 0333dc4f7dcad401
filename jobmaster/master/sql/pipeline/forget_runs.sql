-- forget_runs: deletes the records of runs that wrote a batch, and the counts and finished files of their tasks; also of runs that were killed
-- in: $1 double precision age in seconds, since the last sign of life
-- out: runs bigint
-- move: nothing
-- fence: none; the batch itself stays, and with it the ids of its jobs
-- index: none, the table is small; pipeline_write_part_pkey, pipeline_brake_pkey; none for the finished files, which runs that ended lack
WITH old AS (
    DELETE FROM pipeline_write
    WHERE greatest(began_at, ended_at, seen_at) < clock_timestamp() - make_interval(secs => $1::double precision)
    RETURNING run_id
), parts AS (
    DELETE FROM pipeline_write_part WHERE run_id IN (SELECT run_id FROM old)
), brakes AS (
    DELETE FROM pipeline_brake WHERE run_id IN (SELECT run_id FROM old)
), files AS (
    DELETE FROM pipeline_file WHERE run_id IN (SELECT run_id FROM old)
)
SELECT count(*) AS runs FROM old
