-- end_sessions: every other session of the database ends
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: none; for databases of tests alone
-- index: none; catalogue
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
