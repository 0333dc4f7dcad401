-- choose_trials: jobs that may try the resources of half-open breakers, never more at once than each allows
-- in: $1 integer how many of the oldest due jobs of each lane and priority are looked at
-- out: name text, chosen integer (new trials), waits boolean (a trial is under way, or some job of it waits), left_seconds double
--      precision (until it becomes half-open, NULL: it is). One line for each breaker that
--      is half-open or will be
-- move: nothing
-- fence: compare-and-set on looks: of two leaders that read the same snapshot, one chooses. So a job is chosen only while fewer
--        trials than half_open are under way or have succeeded. A trial is a job and not a run: the job runs once at a time, and
--        it remains a trial after a rescue. A trial that has ended without a report has the result of its row when that is a
--        success. It gives its place up when its run has ended otherwise, when it was put off, and when it has not started for 30
--        seconds (a pause or a limit holds it, or an ordering key whose earlier job is no trial); then it is none for a minute
-- index: breaker_pkey, breaker_trial_pkey, job_pkey; job_due for each lane and priority, its oldest jobs
WITH RECURSIVE half AS MATERIALIZED (
    SELECT name, epoch, looks, half_open FROM breaker WHERE state = 'HALF_OPEN'
), trials AS MATERIALIZED (
    SELECT t.breaker, t.job_id, t.failed, t.passed_at IS NOT NULL AS passed,
           t.failed IS NULL AND j.state IS NOT DISTINCT FROM 'SUCCEEDED' AS succeeded,
           t.failed IS NULL AND t.passed_at IS NULL AND j.state IS DISTINCT FROM 'SUCCEEDED'
           AND (j.id IS NULL OR j.attempt > t.attempt OR j.state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'WAITING')
                OR j.state = 'HELD' AND j.due_at > statement_timestamp()
                -- The agent that has it may start it by a clock that is ahead.
                OR j.state = 'ASSIGNED' AND coalesce(j.due_at > statement_timestamp() + interval '5 seconds', false)
                OR j.state IN ('HELD', 'ASSIGNED') AND t.chosen_at < statement_timestamp() - interval '30 seconds') AS void
    FROM breaker_trial t JOIN half h ON h.name = t.breaker AND h.epoch = t.epoch
    LEFT JOIN job j ON j.id = t.job_id
), room AS MATERIALIZED (
    SELECT h.name, h.epoch, h.looks,
           h.half_open - count(*) FILTER (WHERE t.failed IS NOT NULL OR t.succeeded OR NOT t.void AND NOT t.passed) AS free,
           count(*) FILTER (WHERE t.failed IS NULL AND NOT t.succeeded AND NOT t.void AND NOT t.passed) AS under_way,
           coalesce(bool_or(t.failed), false) AS failed
    FROM half h LEFT JOIN trials t ON t.breaker = h.name
    GROUP BY h.name, h.epoch, h.looks, h.half_open
), groups AS (
    (SELECT lane, priority FROM job WHERE state = 'HELD' AND EXISTS (SELECT FROM room WHERE free > 0 AND NOT failed)
     ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1)
    UNION ALL
    SELECT next.lane, next.priority
    FROM groups g, LATERAL (
        SELECT lane, priority FROM job
        WHERE state = 'HELD' AND (lane, priority) < (g.lane, g.priority)
        ORDER BY lane DESC, priority DESC, due_at DESC LIMIT 1
    ) AS next
), runnable AS MATERIALIZED (
    -- Handlers whose jobs would start there.
    SELECT r.name, r.epoch, r.free, g.lane, g.priority, array_agg(h.handler) AS handlers
    FROM room r JOIN breaker_handler h ON h.breaker = r.name, groups g
    WHERE r.free > 0 AND NOT r.failed
      AND EXISTS (
          SELECT FROM bucket b JOIN agent a ON a.id = b.owner
          WHERE b.lane = g.lane AND b.priority = g.priority AND b.state = 'ACTIVE' AND a.state = 'ACTIVE'
            AND h.handler = ANY (a.handlers)
      ) AND NOT EXISTS (
          SELECT FROM pause p
          WHERE (p.kind, p.value) IN (('handler', h.handler), ('lane', g.lane),
                                      ('priority', (ARRAY['very_low', 'low', 'medium', 'high', 'critical'])[g.priority]))
            AND (p.until IS NULL OR p.until > clock_timestamp())
      )
    GROUP BY r.name, r.epoch, r.free, g.lane, g.priority
), candidates AS MATERIALIZED (
    SELECT r.name, r.epoch, r.free, c.id, c.attempt, row_number() OVER (PARTITION BY r.name ORDER BY c.due_at, c.id) AS place
    FROM runnable r, LATERAL (
        SELECT f.id, f.attempt, f.due_at
        FROM (
            SELECT j.id, j.attempt, j.due_at, j.handler, j.cancel_requested FROM job j
            WHERE j.state = 'HELD' AND j.lane = r.lane AND j.priority = r.priority AND j.due_at <= statement_timestamp()
            ORDER BY j.due_at LIMIT $1::integer
        ) AS f
        WHERE NOT f.cancel_requested AND f.handler = ANY (r.handlers)
          AND NOT EXISTS (
              SELECT FROM breaker_trial t
              WHERE t.breaker = r.name AND t.job_id = f.id AND t.epoch = r.epoch
                AND (t.failed IS NOT NULL OR t.passed_at IS NULL OR t.passed_at > statement_timestamp() - interval '1 minute')
          )
        ORDER BY f.due_at LIMIT r.free
    ) AS c
), work AS MATERIALIZED (
    SELECT r.name, r.epoch, r.looks FROM room r
    WHERE EXISTS (SELECT FROM candidates c WHERE c.name = r.name)
       OR EXISTS (SELECT FROM trials t WHERE t.breaker = r.name AND (t.void OR t.succeeded))
), versioned AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp()))
    WHERE EXISTS (SELECT FROM work)
    RETURNING v.version
), won AS (
    UPDATE breaker b SET looks = b.looks + 1 FROM work w, versioned v
    WHERE b.name = w.name AND b.epoch = w.epoch AND b.looks = w.looks
    RETURNING b.name
), settled AS (
    UPDATE breaker_trial t SET failed = false FROM trials s, won
    WHERE s.succeeded AND t.breaker = s.breaker AND t.job_id = s.job_id AND won.name = t.breaker AND t.failed IS NULL
), passed AS (
    UPDATE breaker_trial t SET passed_at = clock_timestamp() FROM trials s, won
    WHERE s.void AND t.breaker = s.breaker AND t.job_id = s.job_id AND won.name = t.breaker AND t.failed IS NULL
), forgotten AS (
    DELETE FROM breaker_trial t USING won
    WHERE t.breaker = won.name AND t.failed IS NULL AND t.passed_at < statement_timestamp() - interval '10 minutes'
      AND t.job_id NOT IN (SELECT id FROM candidates) AND t.job_id NOT IN (SELECT job_id FROM trials WHERE succeeded)
), chosen AS (
    INSERT INTO breaker_trial (breaker, epoch, job_id, attempt)
    SELECT c.name, c.epoch, c.id, c.attempt FROM candidates c JOIN won ON won.name = c.name WHERE c.place <= c.free
    ON CONFLICT (breaker, job_id) DO UPDATE
    SET epoch = EXCLUDED.epoch, attempt = EXCLUDED.attempt, failed = NULL, chosen_at = clock_timestamp(), passed_at = NULL
    RETURNING breaker
)
SELECT b.name, (SELECT count(*) FROM chosen c WHERE c.breaker = b.name)::integer AS chosen,
       coalesce(r.under_way > 0, true) OR EXISTS (SELECT FROM candidates c WHERE c.name = b.name) AS waits,
       extract(epoch FROM b.until - clock_timestamp())::double precision AS left_seconds
FROM breaker b LEFT JOIN room r ON r.name = b.name
WHERE b.state = 'HALF_OPEN' OR b.until IS NOT NULL
ORDER BY b.name
