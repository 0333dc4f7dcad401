-- report: an agent adds what it has counted since its report before
-- in: $1 uuid agent
-- in: $2 bigint number of the report, grows with every new one
-- in: $3 text[] breakers
-- in: $4 integer[] runs that count
-- in: $5 integer[] those of them that have failed
-- in: $6 text[] breakers of trials that have ended
-- in: $7 uuid[] jobs of these trials
-- in: $8 boolean[] whether each has failed
-- out: reported integer (lines)
-- move: nothing
-- fence: insert-or-ignore by the number: a report that is sent again after a lost answer counts once. Each agent has lines of
--        its own, so no two of them wait for each other. A trial has one result, the first
-- index: breaker_result_pkey (also for its old lines, which go), breaker_trial_pkey
WITH trials AS (
    UPDATE breaker_trial t SET failed = g.failed
    FROM unnest($6::text[], $7::uuid[], $8::boolean[]) AS g (breaker, job_id, failed)
    WHERE t.breaker = g.breaker AND t.job_id = g.job_id AND t.failed IS NULL
), old AS (
    DELETE FROM breaker_result r USING breaker b
    WHERE r.breaker = ANY ($3::text[]) AND r.agent_id = $1::uuid AND b.name = r.breaker
      AND r.at < clock_timestamp() - make_interval(secs => b.window_seconds)
), added AS (
    INSERT INTO breaker_result (breaker, agent_id, number, calls, failures)
    SELECT g.breaker, $1, $2::bigint, g.calls, g.failures
    FROM unnest($3, $4::integer[], $5::integer[]) AS g (breaker, calls, failures)
    ORDER BY g.breaker
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT count(*)::integer AS reported FROM added
