-- block_attempts_retirement: the same for attempts
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: see block_retirement
-- index: none
LOCK TABLE attempt, attempt_detached IN ACCESS SHARE MODE
