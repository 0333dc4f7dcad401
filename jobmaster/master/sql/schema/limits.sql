-- limits: how long statements of the connection may take
-- in: nothing
-- out: locks text, statements text
-- move: nothing
-- fence: none
-- index: none
SELECT current_setting('lock_timeout') AS locks, current_setting('statement_timeout') AS statements
