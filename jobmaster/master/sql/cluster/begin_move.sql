-- begin_move: notes where the jobs of the cluster go, or returns the move that has begun
-- in: $1 uuid of the target cluster
-- in: $2 text its name
-- out: target uuid, target_name text, page uuid[] (jobs that may be in both), moved bigint
-- move: nothing
-- fence: the one row: while a page is in doubt or signals are on their way, the target stays
-- index: cluster_move_pkey; passed_signal is small
INSERT INTO cluster_move AS m (target, target_name)
VALUES ($1::uuid, $2::text)
ON CONFLICT (one_row) DO UPDATE
SET (target, target_name) = (
    SELECT CASE WHEN settled THEN EXCLUDED.target ELSE m.target END, CASE WHEN settled THEN EXCLUDED.target_name ELSE m.target_name END
    FROM (SELECT m.page = '{}' AND NOT EXISTS (SELECT FROM passed_signal) AS settled) AS look)
RETURNING target, target_name, page, moved
