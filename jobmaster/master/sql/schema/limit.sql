-- limit: from now on statements of the connection may take so long
-- in: $1 text waiting for a lock, 0 = for ever
-- in: $2 text in all, 0 = for ever
-- out: nothing
-- move: nothing
-- fence: none
-- index: none
SELECT set_config('lock_timeout', $1::text, false), set_config('statement_timeout', $2::text, false)
