-- mark_adopted: all rows of an older batch are remembered
-- in: $1 integer source
-- out: nothing
-- move: nothing
-- fence: none; done again it notes a later moment
-- index: pipeline_source_pkey
UPDATE pipeline_source SET adopted_at = clock_timestamp() WHERE id = $1::integer
