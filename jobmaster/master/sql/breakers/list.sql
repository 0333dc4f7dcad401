-- list: the breakers of the cluster
-- in: $1 text one of them, NULL = all
-- out: name text, state text, failures double precision, window_seconds double precision, min_calls integer, open_seconds double
--      precision, half_open integer, handlers text[], calls bigint, failed bigint, trial_jobs uuid[] (under way), succeeded bigint
--      (trials), changed_us bigint, until_us bigint, actor text, reason text, epoch bigint
-- move: nothing
-- fence: none
-- index: breaker_pkey, breaker_result_time, breaker_trial_pkey
SELECT b.name, b.state, b.failures, b.window_seconds, b.min_calls, b.open_seconds, b.half_open,
       ARRAY (SELECT handler FROM breaker_handler h WHERE h.breaker = b.name ORDER BY handler) AS handlers,
       r.calls, r.failed, coalesce(t.jobs, '{}') AS trial_jobs, t.succeeded,
       to_us(b.changed_at) AS changed_us, to_us(b.until) AS until_us, b.actor, b.reason, b.epoch
FROM breaker b, LATERAL (
    SELECT coalesce(sum(calls), 0)::bigint AS calls, coalesce(sum(failures), 0)::bigint AS failed FROM breaker_result
    WHERE breaker = b.name AND at > greatest(b.changed_at, clock_timestamp() - make_interval(secs => b.window_seconds))
) AS r, LATERAL (
    SELECT array_agg(job_id ORDER BY job_id) FILTER (WHERE failed IS NULL AND passed_at IS NULL) AS jobs,
           count(*) FILTER (WHERE NOT failed) AS succeeded
    FROM breaker_trial WHERE breaker = b.name AND epoch = b.epoch AND b.state = 'HALF_OPEN'
) AS t
WHERE $1::text IS NULL OR b.name = $1
ORDER BY b.name
