-- create_role: a role of a cluster, if it is not there (`jobmaster db roles` puts its name in place of role_example)
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none: two at once, and one has an error
-- index: none
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'role_example') THEN
        CREATE ROLE role_example LOGIN;
    END IF;
END
$$
