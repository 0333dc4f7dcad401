-- server: the server's version, and whether it takes writes
-- in: nothing
-- out: version integer, version_text text, read_only boolean
-- move: nothing
-- fence: none
-- index: none
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_version') AS version_text,
       pg_is_in_recovery() AS read_only
