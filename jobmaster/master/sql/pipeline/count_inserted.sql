-- count_inserted: counts the rows that a task of a run has inserted, in the same transaction, and notes how far it is
-- in: $1 text run id
-- in: $2 integer number of the task
-- in: $3 bigint rows
-- in: $4 bigint rows that this attempt of the task has read
-- out: inserted bigint (by all attempts of the task)
-- move: nothing
-- fence: the transaction of the insert: counted if and only if the rows are there
-- index: pipeline_write_part_pkey
INSERT INTO pipeline_write_part AS part (run_id, part, inserted, handled)
VALUES ($1::text, $2::integer, $3::bigint, $4::bigint)
ON CONFLICT (run_id, part) DO UPDATE SET inserted = part.inserted + excluded.inserted, handled = excluded.handled
RETURNING inserted
