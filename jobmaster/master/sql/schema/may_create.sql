-- may_create: the owner's role may make the schema of its cluster in this database (`jobmaster db roles` puts its name in place of role_example)
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none
-- index: none
DO $$
BEGIN
    EXECUTE format('GRANT CREATE ON DATABASE %I TO role_example', current_database());
END
$$
