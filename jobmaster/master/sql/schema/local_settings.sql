-- local_settings: settings of our sessions for one transaction, where a pooler has the sessions
-- in: $1 text[] names of settings
-- in: $2 text[] their values
-- out: set_config text
-- move: nothing
-- fence: local to the transaction: they are gone with its commit or its rollback
-- index: none
SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) AS setting (name, value)
