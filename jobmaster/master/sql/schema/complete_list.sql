-- complete_list: the list of migrations gets the column of the programs that may run on each
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: the migrator's advisory lock
-- index: none
ALTER TABLE schema_migration ADD COLUMN IF NOT EXISTS programs integer
