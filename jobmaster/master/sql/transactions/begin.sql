-- begin: name the transaction that was just begun for an attempt, so that no other is taken for it
-- in: $1 text identity of the attempt
-- out: set_config text
-- move: nothing
-- fence: local to the transaction: it is gone with its commit or its rollback, also when the attempt ends it
-- index: none
SELECT set_config('jobmaster.attempt', $1::text, true)
