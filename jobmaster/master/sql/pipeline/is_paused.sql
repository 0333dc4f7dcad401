-- is_paused: whether the backfill of a run is paused
-- in: $1 text run id
-- out: paused boolean (no row: the run is unknown)
-- move: nothing
-- fence: none: a chunk that has begun when the pause comes is written to its end
-- index: pipeline_write_pkey, pipeline_backfill_pkey
SELECT b.paused_at IS NOT NULL AS paused
FROM pipeline_write w
LEFT JOIN pipeline_backfill b ON b.name = w.name
WHERE w.run_id = $1::text
