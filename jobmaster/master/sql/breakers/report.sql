-- report: an agent adds what it has counted since its report before
-- in: $1 uuid agent
-- in: $2 bigint number of the report, grows with every new one
-- in: $3 text[] breakers
-- in: $4 integer[] runs that count
-- in: $5 integer[] those of them that have failed
-- in: $6 text[] breakers of trials that have ended
-- in: $7 uuid[] jobs of these trials
-- in: $8 integer[] attempts that these jobs had used up before the run
-- in: $9 boolean[] whether each has failed
-- out: unknown text[] (breakers that the master does not know: a failover may have forgotten their declaration)
-- move: nothing
-- fence: by the number: a report that is sent again after a lost answer counts once. Each agent has lines of its own, so no two
--        of them wait for each other. A line takes what follows within a sixtieth of the window, so an evaluation reads at most
--        some sixty lines of each agent. A trial has one result, the first, and only of the run that it was chosen for
-- index: breaker_result_pkey (also for its old lines, which go), breaker_trial_pkey
WITH trials AS (
    UPDATE breaker_trial t SET failed = g.failed
    FROM unnest($6::text[], $7::uuid[], $8::integer[], $9::boolean[]) AS g (breaker, job_id, attempt, failed)
    WHERE t.breaker = g.breaker AND t.job_id = g.job_id AND t.attempt = g.attempt AND t.failed IS NULL
), counted AS MATERIALIZED (
    SELECT g.breaker, g.calls, g.failures, b.name IS NOT NULL AS known, b.window_seconds, b.changed_at,
           (SELECT max(number) FROM breaker_result l WHERE l.breaker = g.breaker AND l.agent_id = $1::uuid) AS last
    FROM unnest($3::text[], $4::integer[], $5::integer[]) AS g (breaker, calls, failures)
    LEFT JOIN breaker b ON b.name = g.breaker
), old AS (
    DELETE FROM breaker_result r USING counted c
    WHERE r.breaker = c.breaker AND r.agent_id = $1
      AND r.at < clock_timestamp() - make_interval(secs => c.window_seconds)
), extended AS (
    UPDATE breaker_result r SET number = $2::bigint, calls = r.calls + c.calls, failures = r.failures + c.failures
    FROM counted c
    WHERE r.breaker = c.breaker AND r.agent_id = $1 AND r.number = c.last AND r.number < $2
      AND r.at > greatest(c.changed_at, clock_timestamp() - make_interval(secs => c.window_seconds / 60))
    RETURNING r.breaker
), added AS (
    INSERT INTO breaker_result (breaker, agent_id, number, calls, failures)
    SELECT breaker, $1, $2, calls, failures FROM counted
    WHERE breaker NOT IN (SELECT breaker FROM extended)
    ORDER BY breaker
    ON CONFLICT DO NOTHING
)
SELECT coalesce(array_agg(breaker) FILTER (WHERE NOT known), '{}') AS unknown FROM counted
