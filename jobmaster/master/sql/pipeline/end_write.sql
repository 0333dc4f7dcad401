-- end_write: ends a run: its counts stay, those of its tasks are deleted
-- in: $1 text run id
-- in: $2 bigint rows offered
-- in: $3 bigint rows rejected
-- out: inserted bigint
-- move: nothing
-- fence: ended_at: a second end of a run finds it ended and changes nothing
-- index: pipeline_write_pkey, pipeline_write_part_pkey, pipeline_brake_pkey
WITH parts AS (
    DELETE FROM pipeline_write_part WHERE run_id = $1::text RETURNING inserted
), brakes AS (
    DELETE FROM pipeline_brake WHERE run_id = $1::text
)
UPDATE pipeline_write
SET ended_at = clock_timestamp(), offered = $2::bigint, rejected = $3::bigint,
    inserted = (SELECT coalesce(sum(inserted), 0) FROM parts)
WHERE run_id = $1::text AND ended_at IS NULL
RETURNING inserted
