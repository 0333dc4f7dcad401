-- begin_write: a run of writing a batch begins
-- in: $1 text run id
-- in: $2 text batch
-- in: $3 text name of the backfill
-- out: nothing
-- move: nothing
-- fence: the primary key; the same run again changes nothing
-- index: pipeline_write_pkey
INSERT INTO pipeline_write (run_id, batch, name) VALUES ($1::text, $2::text, $3::text) ON CONFLICT (run_id) DO NOTHING
