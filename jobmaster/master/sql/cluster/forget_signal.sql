-- forget_signal: the other cluster has a signal that was on its way
-- in: $1 uuid the signal
-- out: nothing
-- move: nothing
-- fence: none; the signal is there under its own id
-- index: none; the table is small
DELETE FROM passed_signal WHERE id = $1::uuid
