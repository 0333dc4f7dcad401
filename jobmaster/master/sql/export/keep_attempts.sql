-- keep_attempts: the same for attempts
-- in: nothing
-- out: nothing
-- move: nothing
-- fence: see keep_ranges
-- index: none
LOCK TABLE attempt, attempt_detached IN ACCESS SHARE MODE
