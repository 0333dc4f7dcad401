-- begin_write: a run of writing a batch begins
-- in: $1 text run id
-- in: $2 text batch
-- out: nothing
-- move: nothing
-- fence: the primary key; the same run again changes nothing
-- index: pipeline_write_pkey
INSERT INTO pipeline_write (run_id, batch) VALUES ($1::text, $2::text) ON CONFLICT (run_id) DO NOTHING
