-- declare: an agent declares the breakers of its handlers
-- in: $1 uuid agent
-- in: $2 text[] names of the breakers
-- in: $3 double precision[] shares of failed runs
-- in: $4 double precision[] windows, seconds
-- in: $5 integer[] least numbers of runs
-- in: $6 double precision[] seconds for which they stay open
-- in: $7 integer[] greatest numbers of trials
-- in: $8 text[] handlers
-- in: $9 text[] their breakers
-- out: name text (those whose numbers were written)
-- move: nothing
-- fence: the numbers of an agent that started later stand; the state of a breaker is never touched
-- index: breaker_pkey, breaker_handler_pkey; agent_pkey
WITH me AS (
    SELECT started_at FROM agent WHERE id = $1::uuid
), related AS (
    INSERT INTO breaker_handler AS h (handler, breaker)
    SELECT * FROM unnest($8::text[], $9::text[]) AS g (handler, breaker) ORDER BY g.handler
    ON CONFLICT (handler) DO UPDATE SET breaker = EXCLUDED.breaker WHERE h.breaker <> EXCLUDED.breaker
)
INSERT INTO breaker AS b (name, failures, window_seconds, min_calls, open_seconds, half_open, declared_at)
SELECT g.name, g.failures, g.window_seconds, g.min_calls, g.open_seconds, g.half_open, me.started_at
FROM me, unnest($2::text[], $3::double precision[], $4::double precision[], $5::integer[], $6::double precision[], $7::integer[])
         AS g (name, failures, window_seconds, min_calls, open_seconds, half_open)
ORDER BY g.name
ON CONFLICT (name) DO UPDATE
SET failures = EXCLUDED.failures, window_seconds = EXCLUDED.window_seconds, min_calls = EXCLUDED.min_calls,
    open_seconds = EXCLUDED.open_seconds, half_open = EXCLUDED.half_open, declared_at = EXCLUDED.declared_at
WHERE b.declared_at <= EXCLUDED.declared_at
RETURNING b.name
