-- create_schema: the cluster's own schema
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: the migrator's advisory lock
-- index: none; catalogue
CREATE SCHEMA IF NOT EXISTS @schema
