-- end_write: ends a run: its counts stay, those of its tasks and the finished files of its backfill are deleted
-- in: $1 text run id
-- in: $2 bigint rows offered
-- in: $3 bigint rows rejected
-- out: inserted bigint
-- move: nothing
-- fence: ended_at: a second end of a run finds it ended and changes nothing
-- index: pipeline_write_pkey, pipeline_write_part_pkey, pipeline_brake_pkey, pipeline_file_pkey
WITH parts AS (
    DELETE FROM pipeline_write_part WHERE run_id = $1::text RETURNING part, inserted, handled
), brakes AS (
    DELETE FROM pipeline_brake WHERE run_id = $1::text
), files AS (
    DELETE FROM pipeline_file WHERE name = (SELECT name FROM pipeline_write WHERE run_id = $1::text)
)
UPDATE pipeline_write
SET ended_at = clock_timestamp(), rejected = $3::bigint,
    offered = $2::bigint + (SELECT coalesce(sum(handled) FILTER (WHERE part = -1), 0) FROM parts),
    inserted = (SELECT coalesce(sum(inserted), 0) FROM parts)
WHERE run_id = $1::text AND ended_at IS NULL
RETURNING inserted
