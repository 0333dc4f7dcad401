-- forget_source: a source is not remembered any more. Its rows go by forget_rows, before and after
-- in: $1 text name
-- out: nothing
-- move: nothing
-- fence: the row of the source: the chunk of a writer that holds it is waited for; a run that begins meanwhile creates it again
-- index: pipeline_source_name_key, pipeline_file_pkey
WITH files AS (
    DELETE FROM pipeline_file WHERE name = $1::text
)
DELETE FROM pipeline_source WHERE name = $1::text
