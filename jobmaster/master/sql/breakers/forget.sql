-- forget: results of agents that report no more
-- in: nothing
-- out: forgotten bigint
-- move: nothing
-- fence: none: no result is read after the longest window, an hour
-- index: none; the table holds the results of one window
WITH gone AS (
    DELETE FROM breaker_result WHERE at < clock_timestamp() - interval '2 hours' RETURNING 1
)
SELECT count(*) AS forgotten FROM gone
