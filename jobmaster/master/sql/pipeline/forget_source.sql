-- forget_source: a source, and what forget_rows has left of its rows, are not remembered any more
-- in: $1 text name
-- out: forgotten bigint
-- move: nothing
-- fence: the row of the source, locked first: a run that begins meanwhile creates it again
-- index: pipeline_source_name_key, pipeline_key_pkey, pipeline_file_pkey
WITH gone AS (
    DELETE FROM pipeline_source WHERE name = $1::text RETURNING id
), keys AS (
    DELETE FROM pipeline_key USING gone WHERE source = gone.id RETURNING 1
), files AS (
    DELETE FROM pipeline_file WHERE name = $1
)
SELECT CASE WHEN EXISTS (SELECT FROM gone) THEN (SELECT count(*) FROM keys) END AS forgotten
