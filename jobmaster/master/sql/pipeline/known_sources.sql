-- known_sources: those of some names under which rows are remembered, or were submitted as a batch
-- in: $1 text[] names
-- out: name text
-- move: nothing
-- fence: none, it reads
-- index: pipeline_source_name_key, pipeline_batch_pkey
SELECT wanted.name
FROM unnest($1::text[]) AS wanted (name)
WHERE EXISTS (SELECT FROM pipeline_source WHERE name = wanted.name)
   OR EXISTS (SELECT FROM pipeline_batch WHERE name = wanted.name)
