-- cluster_mode: the mode of the cluster, and how far its move to another master is
-- in: nothing
-- out: mode text, since_us bigint, open_buckets bigint, target text (NULL: there was no move), moved bigint, in_doubt bigint
-- move: nothing
-- fence: none
-- index: none; small tables
SELECT c.mode, to_us(c.mode_at) AS since_us, (SELECT count(*) FROM bucket WHERE state <> 'READY_TO_DELETE') AS open_buckets,
       m.target_name AS target, coalesce(m.moved, 0) AS moved, coalesce(cardinality(m.page), 0)::bigint AS in_doubt
FROM cluster c
LEFT JOIN cluster_move m ON true
