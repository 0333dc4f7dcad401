-- still_open: whether this is still the transaction that was begun for an attempt
-- in: $1 text identity of the attempt
-- out: same boolean
-- move: nothing
-- fence: none
-- index: none
SELECT coalesce(current_setting('jobmaster.attempt', true) = $1::text, false) AS same
