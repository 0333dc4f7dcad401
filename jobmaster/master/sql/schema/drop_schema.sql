-- drop_schema: a cluster that was made to be thrown away goes, with everything in it
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none; the caller has read whose schema it is
-- index: none; catalogue
DROP SCHEMA IF EXISTS @schema CASCADE
