-- callbacks: the callbacks of a batch as they were given
-- in: $1 uuid batch
-- out: occasion text, priority smallint, lane text, handler text, args bytea, headers bytea
-- move: nothing
-- fence: none
-- index: batch_callback_pkey
SELECT occasion, priority, lane, handler, args, headers FROM batch_callback WHERE batch = $1::uuid ORDER BY occasion
