-- begin: the transaction that was just begun for an attempt bears its name, so that no other is taken for it
-- in: $1 text identity of the attempt
-- out: set_config text
-- move: nothing
-- fence: local to the transaction: it is gone with its commit or its rollback, whoever asked for that
-- index: none
SELECT set_config('jobmaster.attempt', $1::text, true)
