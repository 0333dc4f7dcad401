-- writes: the latest runs of writing batches
-- in: nothing
-- out: run_id text, batch text, began_at timestamptz, inserted bigint, rejected bigint, ended boolean
-- move: nothing
-- fence: none, it reads
-- index: none, the table is small
SELECT run_id, batch, began_at, inserted, rejected, ended_at IS NOT NULL AS ended
FROM pipeline_write
ORDER BY began_at DESC
LIMIT 50
