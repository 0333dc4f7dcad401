-- begin_write: a run of writing a batch begins
-- in: $1 text run id
-- in: $2 text batch
-- in: $3 text name of the backfill
-- in: $4 bigint rows of files that earlier runs have finished: this run leaves them out and counts them as offered
-- out: nothing
-- move: nothing
-- fence: the primary key; the same run again changes nothing
-- index: pipeline_write_pkey, pipeline_write_part_pkey
WITH finished AS (
    INSERT INTO pipeline_write_part (run_id, part, inserted, handled) SELECT $1::text, -1, 0, $4::bigint WHERE $4 > 0
    ON CONFLICT (run_id, part) DO NOTHING
)
INSERT INTO pipeline_write (run_id, batch, name) VALUES ($1::text, $2::text, $3::text) ON CONFLICT (run_id) DO NOTHING
