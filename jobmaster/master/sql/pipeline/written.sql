-- written: the number of rows that a run has inserted so far
-- in: $1 text run id
-- out: inserted bigint
-- move: nothing
-- fence: none, it reads
-- index: pipeline_write_part_pkey
SELECT coalesce(sum(inserted), 0)::bigint AS inserted FROM pipeline_write_part WHERE run_id = $1::text
