-- choose_trials: jobs that may try the resources of half-open breakers, never more at once than each allows
-- in: nothing
-- out: name text, chosen integer (new trials), waits boolean (a trial is under way, or some job of it waits), left_seconds double
--      precision (until it becomes half-open, NULL: it is). One line for each breaker that
--      is half-open or will be
-- move: nothing
-- fence: compare-and-set on looks: of two leaders that read the same snapshot, one chooses. So a job is chosen only while fewer
--        trials than half_open are under way or have succeeded. A trial is a job and not a run: the job runs once at a time, and
--        it remains a trial after a rescue. A trial that has ended without a report has the result of its row when that is a
--        success; otherwise, and when the job will not run soon, another job gets its place
-- index: breaker_pkey, breaker_trial_pkey, job_pkey; job_due for each lane and priority, its oldest jobs
WITH RECURSIVE half AS MATERIALIZED (
    SELECT name, epoch, looks, half_open FROM breaker WHERE state = 'HALF_OPEN'
), trials AS MATERIALIZED (
    SELECT t.breaker, t.job_id, t.failed,
           t.failed IS NULL AND j.state = 'SUCCEEDED' AS succeeded,
           t.failed IS NULL AND (j.id IS NULL OR j.attempt > t.attempt OR j.state IN ('FAILED', 'CANCELLED', 'EXPIRED', 'WAITING')
                                 OR (j.state = 'HELD' AND j.due_at > statement_timestamp())) AND j.state IS DISTINCT FROM 'SUCCEEDED'
               AS void
    FROM breaker_trial t JOIN half h ON h.name = t.breaker AND h.epoch = t.epoch
    LEFT JOIN job j ON j.id = t.job_id
), room AS MATERIALIZED (
    SELECT h.name, h.epoch, h.looks, h.half_open - count(t.job_id) FILTER (WHERE NOT t.void) AS free,
           count(*) FILTER (WHERE t.failed IS NULL AND NOT t.void AND NOT t.succeeded) AS under_way,
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
), candidates AS MATERIALIZED (
    SELECT r.name, r.epoch, r.free, c.id, c.attempt, row_number() OVER (PARTITION BY r.name ORDER BY c.due_at, c.id) AS place
    FROM room r, groups g, LATERAL (
        SELECT j.id, j.attempt, j.due_at FROM job j
        WHERE j.state = 'HELD' AND j.lane = g.lane AND j.priority = g.priority AND j.due_at <= statement_timestamp()
          AND NOT j.cancel_requested
          AND j.handler = ANY (ARRAY (SELECT handler FROM breaker_handler WHERE breaker = r.name))
          AND NOT EXISTS (SELECT FROM breaker_trial t WHERE t.breaker = r.name AND t.job_id = j.id AND t.epoch = r.epoch)
        ORDER BY j.due_at LIMIT r.free
    ) AS c
    WHERE r.free > 0 AND NOT r.failed
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
), vacated AS (
    DELETE FROM breaker_trial t USING trials s, won
    WHERE s.void AND t.breaker = s.breaker AND t.job_id = s.job_id AND won.name = t.breaker AND t.failed IS NULL
), chosen AS (
    INSERT INTO breaker_trial (breaker, epoch, job_id, attempt)
    SELECT c.name, c.epoch, c.id, c.attempt FROM candidates c JOIN won ON won.name = c.name WHERE c.place <= c.free
    ON CONFLICT (breaker, job_id) DO UPDATE SET epoch = EXCLUDED.epoch, attempt = EXCLUDED.attempt, failed = NULL
    RETURNING breaker
)
SELECT b.name, (SELECT count(*) FROM chosen c WHERE c.breaker = b.name)::integer AS chosen,
       coalesce(r.under_way > 0, true) OR EXISTS (SELECT FROM candidates c WHERE c.name = b.name) AS waits,
       extract(epoch FROM b.until - clock_timestamp())::double precision AS left_seconds
FROM breaker b LEFT JOIN room r ON r.name = b.name
WHERE b.state = 'HALF_OPEN' OR b.until IS NOT NULL
ORDER BY b.name
