-- count_inserted: counts the rows that a task of a run has inserted, in the same transaction
-- in: $1 text run id
-- in: $2 integer number of the task
-- in: $3 bigint rows
-- out: inserted bigint (by all attempts of the task)
-- move: nothing
-- fence: the transaction of the insert: counted if and only if the rows are there
-- index: pipeline_write_part_pkey
INSERT INTO pipeline_write_part AS part (run_id, part, inserted) VALUES ($1::text, $2::integer, $3::bigint)
ON CONFLICT (run_id, part) DO UPDATE SET inserted = part.inserted + excluded.inserted
RETURNING inserted
