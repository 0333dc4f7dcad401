-- evaluate: breakers whose numbers say so open, and half-open ones open again or close
-- in: $1 text[] breakers
-- in: $2 boolean no job waits for a trial: one success is enough then
-- out: name text, state text, reason text, version bigint (of the pauses)
-- move: nothing
-- fence: compare-and-set on the epoch: of two agents that come to the same result one changes it. A statement of its own after
--        the report, so it sees every report that is committed; of two that are committed at once, the later evaluation sees both.
--        Only runs that were reported since the breaker has got its state count. pause_version is locked before the breaker, as
--        in every change of what agents obey
-- index: breaker_pkey, breaker_result_time, breaker_trial_pkey, pause_version_pkey
WITH counted AS MATERIALIZED (
    SELECT b.name, b.epoch, b.state, b.failures, b.min_calls, b.half_open, b.open_seconds,
           r.calls, r.failed, t.tried, t.tried_failed, t.under_way
    FROM breaker b, LATERAL (
        SELECT coalesce(sum(calls), 0) AS calls, coalesce(sum(failures), 0) AS failed FROM breaker_result
        WHERE breaker = b.name
          AND at > greatest(b.changed_at, clock_timestamp() - make_interval(secs => b.window_seconds))
    ) AS r, LATERAL (
        SELECT count(*) FILTER (WHERE NOT failed) AS tried, count(*) FILTER (WHERE failed) AS tried_failed,
               count(*) FILTER (WHERE failed IS NULL AND passed_at IS NULL) AS under_way
        FROM breaker_trial WHERE breaker = b.name AND epoch = b.epoch
    ) AS t
    WHERE b.name = ANY ($1::text[])
), wanted AS MATERIALIZED (
    SELECT name, epoch, open_seconds, 'OPEN' AS state, format('%s of %s runs have failed', failed, calls) AS reason
    FROM counted WHERE state = 'CLOSED' AND calls >= min_calls AND failed >= failures * calls AND failed > 0
    UNION ALL
    SELECT name, epoch, open_seconds, 'OPEN', format('%s of %s trials have failed', tried_failed, tried + tried_failed)
    FROM counted WHERE state = 'HALF_OPEN' AND tried_failed > 0
    UNION ALL
    SELECT name, epoch, NULL, 'CLOSED', format('%s trials have succeeded', tried)
    FROM counted
    WHERE state = 'HALF_OPEN' AND tried_failed = 0
      AND (tried >= half_open OR ($2::boolean AND tried > 0 AND under_way = 0))
), versioned AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp()))
    WHERE EXISTS (SELECT FROM wanted)
    RETURNING v.version
)
UPDATE breaker b
SET state = w.state, epoch = greatest(b.epoch + 1, to_us(clock_timestamp())), reason = w.reason, actor = 'breaker',
    until = clock_timestamp() + make_interval(secs => w.open_seconds), changed_at = clock_timestamp()
FROM wanted w, versioned v
WHERE b.name = w.name AND b.epoch = w.epoch
RETURNING b.name, b.state, b.reason, v.version
