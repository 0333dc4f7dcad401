-- list: the breakers of the cluster
-- in: $1 text one of them, NULL = all
-- out: name text, state text, failures double precision, window_seconds double precision, min_calls integer, open_seconds double
--      precision, half_open integer, handlers text[], calls bigint, failed bigint, trials bigint (under way), changed_us bigint,
--      until_us bigint, actor text, reason text
-- move: nothing
-- fence: none
-- index: breaker_pkey, breaker_result_time, breaker_trial_pkey
SELECT b.name, b.state, b.failures, b.window_seconds, b.min_calls, b.open_seconds, b.half_open,
       ARRAY (SELECT handler FROM breaker_handler h WHERE h.breaker = b.name ORDER BY handler) AS handlers,
       r.calls, r.failed,
       (SELECT count(*) FROM breaker_trial t WHERE t.breaker = b.name AND t.epoch = b.epoch AND t.failed IS NULL) AS trials,
       to_us(b.changed_at) AS changed_us, to_us(b.until) AS until_us, b.actor, b.reason
FROM breaker b, LATERAL (
    SELECT coalesce(sum(calls), 0)::bigint AS calls, coalesce(sum(failures), 0)::bigint AS failed FROM breaker_result
    WHERE breaker = b.name AND at > greatest(b.changed_at, clock_timestamp() - make_interval(secs => b.window_seconds))
) AS r
WHERE $1::text IS NULL OR b.name = $1
ORDER BY b.name
