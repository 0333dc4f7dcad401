-- forget: results of agents that report no more, and breakers of handlers that no agent has any more
-- in: nothing
-- out: forgotten bigint (results), breakers text[]
-- move: nothing
-- fence: none: no result is read after the longest window, an hour. A breaker is forgotten while it is closed; an agent that
--        reports a result of it declares it again
-- index: none; the tables hold the results of one window, and the breakers
WITH gone AS (
    DELETE FROM breaker_result WHERE at < clock_timestamp() - interval '2 hours' RETURNING 1
), idle AS (
    DELETE FROM breaker b
    WHERE b.state = 'CLOSED' AND greatest(b.changed_at, b.declared_at) < clock_timestamp() - interval '1 day'
      AND NOT EXISTS (
          SELECT FROM breaker_handler h JOIN agent a ON h.handler = ANY (a.handlers)
          WHERE h.breaker = b.name AND a.state IN ('ACTIVE', 'STOPPING')
      )
    RETURNING b.name
), unrelated AS (
    DELETE FROM breaker_handler h USING idle WHERE h.breaker = idle.name
), untried AS (
    DELETE FROM breaker_trial t USING idle WHERE t.breaker = idle.name
)
SELECT (SELECT count(*) FROM gone) AS forgotten, ARRAY (SELECT name FROM idle ORDER BY name) AS breakers
