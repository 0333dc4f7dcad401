-- lock: one migrator at a time per schema, until its connection ends
-- in: $1 text schema
-- out: nothing
-- move: nothing
-- fence: session-level advisory lock; waiting for it ends with lock_timeout
-- index: none
SELECT pg_advisory_lock(hashtext('jobmaster migrate'), hashtext($1::text))
