-- create_cluster: the schema belongs to a cluster from now on
-- in: $1 text name
-- out: nothing
-- move: nothing
-- fence: the primary key allows one row
-- index: cluster_pkey
INSERT INTO cluster (name) VALUES ($1::text) ON CONFLICT (one_row) DO NOTHING
