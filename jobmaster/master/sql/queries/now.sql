-- now: the master's clock
-- in: nothing
-- out: now timestamptz
-- move: nothing
-- fence: none
-- index: none
SELECT clock_timestamp() AS now
