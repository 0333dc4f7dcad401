-- done: whether an action has been done
-- in: $1 text name
-- in: $2 text version
-- out: done_at timestamptz (no row: it has not)
-- move: nothing
-- fence: none
-- index: once_action_pkey
SELECT done_at FROM once_action WHERE name = $1::text AND version = $2::text
