-- create_list: which migrations have been applied, with the checksum of what was applied
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: the migrator's advisory lock
-- index: none
CREATE TABLE IF NOT EXISTS schema_migration (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    checksum    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    by          text NOT NULL DEFAULT session_user
)
