-- lock: one migrator at a time per schema, until its connection ends
-- in: $1 text schema
-- out: taken boolean
-- move: nothing
-- fence: session-level advisory lock. It is not waited for: an index is built while others write only when no statement is older
-- index: none
SELECT pg_try_advisory_lock(hashtext('jobmaster migrate'), hashtext($1::text)) AS taken
