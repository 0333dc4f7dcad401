-- roles_there: how many of some roles there are
-- in: $1 text[] names
-- out: roles bigint
-- move: nothing
-- fence: none
-- index: none
SELECT count(*) AS roles FROM pg_roles WHERE rolname = ANY ($1::text[])
