-- finished_files: files of a source that the unfinished runs of a backfill have written
-- in: $1 text name of the backfill
-- out: file bigint, rows bigint
-- move: nothing
-- fence: none, it reads
-- index: pipeline_file_pkey
SELECT file, rows FROM pipeline_file WHERE name = $1::text
