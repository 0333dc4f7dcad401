-- lock_signals: keys of signals for which jobs of another cluster wait, before these jobs come here
-- in: $1 text[] keys
-- out: nothing
-- move: nothing
-- fence: the locks of the keys, shared until the commit: a sender comes before, and has kept its signal, or finds the jobs
-- index: none
SELECT share_signal_keys($1::text[])
