-- fire: fires of schedules are decided: a line for each, a job for those that are due
-- in: $1 text[] schedules
-- in: $2 bigint[] their next fires, as they were read
-- in: $3 bigint[] their revisions, as they were read
-- in: $4 bigint[] their next fires from now on, 0 = none
-- in: $5 text[] schedule of each line
-- in: $6 bigint[] nominal times, microseconds since 1970
-- in: $7 text[] outcomes: fired, skipped or missed
-- in: $8 bigint[] times through which a line stands for all fires, 0 = for one
-- in: $9 uuid[] jobs
-- in: $10 bigint[] due times of the jobs
-- in: $11 bytea[] headers of the jobs
-- in: $12 double precision lead, seconds
-- in: $13 bigint epoch of the leader, NULL = none
-- out: schedule text, nominal_us bigint, outcome text, lane text, priority smallint, due_us bigint
-- move: none -> HELD
-- move: HELD|WAITING -> CANCELLED
-- fence: compare-and-set on next_fire and revision, read again under the lock of the row: of two leaders one decides a fire. The
--        key of schedule_fire is the second guard. An earlier job that has not ended is read in the snapshot: one that ends
--        meanwhile counts as not ended. A withdrawn fire is decided again only when its job is CANCELLED:
--        of one that was retired with its range it is not known whether it ran.
-- index: schedule_pkey and job_pkey, both in order; schedule_fire_pkey, as the arbiter, too
WITH held AS MATERIALIZED (
    SELECT s.name, s.handler, s.args, s.lane, s.priority, s.overlap, s.last_fire, s.last_jobs, m.next_us
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS m (name, expected_us, revision, next_us)
    JOIN schedule s ON s.name = m.name
    WHERE s.next_fire = from_us(m.expected_us) AND s.revision = m.revision AND s.paused_at IS NULL AND s.retired_at IS NULL
    ORDER BY s.name
    FOR UPDATE OF s
), running AS MATERIALIZED (
    SELECT h.name, array_agg(j.id ORDER BY j.id) AS ids, max(j.changed_at) AS since
    FROM held h CROSS JOIN LATERAL unnest(h.last_jobs) AS last (id) JOIN job j ON j.id = last.id
    WHERE h.overlap <> 'parallel' AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
    GROUP BY h.name
), checked AS MATERIALIZED (
    SELECT h.name, h.handler, h.args, h.lane, h.priority, h.overlap, h.last_fire,
           l.nominal_us, l.through_us, l.job_id, l.due_us, l.headers,
           CASE
               WHEN f.outcome <> 'withdrawn' OR (f.job_id IS NOT NULL AND j.id IS NULL) THEN 'known'
               WHEN j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING') THEN 'waits'
               WHEN j.state IN ('SUCCEEDED', 'FAILED') THEN 'ran'
               WHEN l.outcome <> 'fired' THEN l.outcome
               WHEN r.name IS NULL THEN 'fired'
               WHEN l.nominal_us > to_us(statement_timestamp()) OR h.overlap = 'queue' THEN 'waits'
               WHEN h.overlap = 'skip' THEN 'skipped'
               ELSE 'fired'
           END AS outcome
    FROM unnest($5::text[], $6::bigint[], $7::text[], $8::bigint[], $9::uuid[], $10::bigint[], $11::bytea[])
         AS l (name, nominal_us, outcome, through_us, job_id, due_us, headers)
    JOIN held h ON h.name = l.name
    LEFT JOIN running r ON r.name = h.name
    LEFT JOIN schedule_fire f ON f.schedule = l.name AND f.nominal = from_us(l.nominal_us)
    LEFT JOIN job j ON j.id = f.job_id
), stops AS MATERIALIZED (
    SELECT name, min(nominal_us) AS nominal_us FROM checked WHERE outcome = 'waits' GROUP BY name
), decided AS MATERIALIZED (
    SELECT j.*, coalesce(lag(from_us(j.nominal_us)) OVER (PARTITION BY j.name ORDER BY j.nominal_us), j.last_fire) AS previous
    FROM checked j LEFT JOIN stops s ON s.name = j.name
    WHERE s.name IS NULL OR j.nominal_us < s.nominal_us
), superseded AS MATERIALIZED (
    SELECT j.id FROM job j
    WHERE j.id = ANY (ARRAY (SELECT unnest(r.ids) FROM running r JOIN decided d ON d.name = r.name
                             WHERE d.overlap = 'cancel_previous' AND d.outcome = 'fired'))
      AND j.state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
    ORDER BY j.id
    FOR UPDATE
), cancelled AS (
    UPDATE job j
    SET state = CASE WHEN j.state IN ('HELD', 'WAITING') THEN 'CANCELLED'::job_state ELSE j.state END,
        changed_at = CASE WHEN j.state IN ('HELD', 'WAITING') THEN clock_timestamp() ELSE j.changed_at END,
        expires_at = NULL,
        cancel_requested = true
    FROM superseded s WHERE j.id = s.id
), noted AS (
    INSERT INTO schedule_fire AS f (schedule, nominal, outcome, job_id, through, previous, leader_epoch)
    SELECT name, from_us(nominal_us), outcome, CASE outcome WHEN 'fired' THEN job_id END, from_us(nullif(through_us, 0)),
           previous, $13::bigint
    FROM decided WHERE outcome IN ('fired', 'skipped', 'missed')
    ORDER BY name, nominal_us
    ON CONFLICT (schedule, nominal) DO UPDATE
    SET outcome = EXCLUDED.outcome, job_id = EXCLUDED.job_id, through = EXCLUDED.through, previous = EXCLUDED.previous,
        leader_epoch = EXCLUDED.leader_epoch, at = clock_timestamp()
    WHERE f.outcome = 'withdrawn'
    RETURNING f.job_id, f.outcome
), made AS (
    INSERT INTO job (id, state, priority, lane, handler, token, due_at, expires_at, args, headers)
    SELECT d.job_id, 'HELD', d.priority, d.lane, d.handler, 1, from_us(d.due_us), expires_of(d.headers), d.args, d.headers
    FROM noted n JOIN decided d ON d.job_id = n.job_id
    WHERE n.outcome = 'fired'
    ORDER BY d.job_id
), restored AS (
    UPDATE schedule_fire f SET outcome = 'fired', previous = d.previous
    FROM decided d WHERE d.outcome = 'ran' AND f.schedule = d.name AND f.nominal = from_us(d.nominal_us)
), ends AS MATERIALIZED (
    SELECT name, max(nominal_us) AS nominal_us,
           array_agg(job_id ORDER BY nominal_us) FILTER (WHERE outcome = 'fired') AS jobs
    FROM decided GROUP BY name
), moved AS (
    UPDATE schedule s
    SET next_fire = from_us(coalesce(w.nominal_us, nullif(h.next_us, 0))),
        decide_at = CASE
            -- The wait so far is added, from one second to fifteen: a job that has run for long will hardly end at once.
            WHEN w.name IS NOT NULL THEN greatest(from_us(w.nominal_us), clock_timestamp() + least(greatest(
                clock_timestamp() - greatest(from_us(w.nominal_us), r.since), interval '1 second'), interval '15 seconds'))
            ELSE from_us(nullif(h.next_us, 0)) - make_interval(secs => $12::double precision)
        END,
        last_fire = coalesce(from_us(e.nominal_us), h.last_fire),
        last_jobs = CASE
            WHEN h.overlap = 'parallel' THEN coalesce(e.jobs[array_upper(e.jobs, 1):], h.last_jobs)
            ELSE (coalesce(e.jobs, '{}') || coalesce(r.ids, '{}'))[1:100]
        END
    FROM held h LEFT JOIN stops w ON w.name = h.name LEFT JOIN ends e ON e.name = h.name LEFT JOIN running r ON r.name = h.name
    WHERE s.name = h.name
)
SELECT name AS schedule, nominal_us, outcome, lane, priority, due_us FROM decided
