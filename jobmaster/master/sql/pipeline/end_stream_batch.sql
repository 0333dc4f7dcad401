-- end_stream_batch: ends the run of a micro-batch: its counts stay, those of its tasks and the runs of earlier ones are deleted
-- in: $1 text run id
-- in: $2 bigint rows offered
-- in: $3 bigint rows rejected
-- in: $4 text name of the query
-- out: inserted bigint
-- move: nothing
-- fence: ended_at: a second end of a run finds it ended and changes nothing
-- index: pipeline_write_pkey, pipeline_write_part_pkey, pipeline_write_batch, pipeline_brake_pkey
WITH earlier AS (
    DELETE FROM pipeline_write WHERE batch = $4::text AND run_id <> $1::text RETURNING run_id
), stale AS (
    DELETE FROM pipeline_write_part WHERE run_id IN (SELECT run_id FROM earlier)
), brakes AS (
    DELETE FROM pipeline_brake WHERE run_id = $1::text OR run_id IN (SELECT run_id FROM earlier)
), parts AS (
    DELETE FROM pipeline_write_part WHERE run_id = $1::text RETURNING inserted
)
UPDATE pipeline_write
SET ended_at = clock_timestamp(), offered = $2::bigint, rejected = $3::bigint,
    inserted = (SELECT coalesce(sum(inserted), 0) FROM parts)
WHERE run_id = $1::text AND ended_at IS NULL
RETURNING inserted
