-- write_result: the result of a run of writing
-- in: $1 text run id
-- out: batch text, as_of_us bigint (microseconds since 1970), offered bigint, inserted bigint, rejected bigint, ended boolean
-- move: nothing
-- fence: none, it reads
-- index: pipeline_write_pkey, pipeline_batch_pkey
SELECT w.batch, to_us(b.as_of) AS as_of_us, w.offered, w.inserted, w.rejected, w.ended_at IS NOT NULL AS ended
FROM pipeline_write w
JOIN pipeline_batch b ON b.name = w.batch
WHERE w.run_id = $1::text
