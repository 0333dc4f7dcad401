-- list: actions that have been done, the latest first
-- in: $1 integer limit
-- out: name text, version text, label text, done_at timestamptz
-- move: nothing
-- fence: none
-- index: the table is small: a line for each version of an action
SELECT name, version, label, done_at FROM once_action ORDER BY done_at DESC, name, version LIMIT $1::integer
