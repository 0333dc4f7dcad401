-- rate_limit: how long to wait before some more rows of a batch may be written, so that all tasks together keep a rate
-- in: $1 text batch
-- in: $2 double precision seconds that these rows take at the rate
-- out: wait_seconds double precision
-- move: nothing
-- fence: the row's lock: each period begins where the last one ends
-- index: pipeline_batch_pkey
UPDATE pipeline_batch
SET next_turn = greatest(next_turn, clock_timestamp()) + $2::double precision * interval '1 second'
WHERE name = $1::text
RETURNING greatest(0, extract(epoch FROM next_turn - clock_timestamp()) - $2::double precision)::double precision AS wait_seconds
