-- finish_files: every row of some files of a source is a job
-- in: $1 text name of the backfill
-- in: $2 text run id
-- in: $3 bigint[] files
-- in: $4 bigint[] rows of each
-- out: nothing
-- move: nothing
-- fence: the run has not ended: a late copy of a task would finish files of a run to come
-- index: pipeline_file_pkey, pipeline_write_pkey
INSERT INTO pipeline_file (name, file, run_id, rows)
SELECT $1::text, found.file, $2::text, found.rows
FROM unnest($3::bigint[], $4::bigint[]) AS found (file, rows)
WHERE EXISTS (SELECT FROM pipeline_write WHERE run_id = $2 AND ended_at IS NULL)
ON CONFLICT (name, file) DO NOTHING
