-- resume: paused schedules fire again, from their next nominal time on; what fell into the pause is not made up for, and a fire
--         that was overdue when it began gets a line
-- in: $1 text[] names
-- in: $2 bigint[] revisions, as they were read
-- in: $3 bigint[] next fires, microseconds since 1970, 0 = none
-- in: $4 double precision lead, seconds
-- in: $5 text actor
-- out: name text
-- move: nothing
-- fence: compare-and-set on revision and paused_at, in the order of names
-- index: schedule_pkey; schedule_fire_pkey, as the arbiter
WITH chosen AS MATERIALIZED (
    SELECT s.name, n.next_us, s.next_fire, s.last_fire, s.paused_at
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS n (name, revision, next_us) JOIN schedule s ON s.name = n.name
    WHERE s.revision = n.revision AND s.paused_at IS NOT NULL
    ORDER BY s.name
    FOR UPDATE OF s
), resumed AS (
    UPDATE schedule s
    SET paused_at = NULL, paused_by = '', paused_reason = '', revision = s.revision + 1, changed_at = clock_timestamp(),
        next_fire = from_us(nullif(c.next_us, 0)), last_fire = NULL,
        decide_at = CASE WHEN s.retired_at IS NULL
                    THEN from_us(nullif(c.next_us, 0)) - make_interval(secs => $4::double precision) END
    FROM chosen c WHERE s.name = c.name
    RETURNING s.name
), noted AS (
    INSERT INTO schedule_fire (schedule, nominal, outcome, through, previous)
    SELECT name, next_fire, 'missed', nullif(paused_at, next_fire), last_fire FROM chosen WHERE next_fire <= paused_at ORDER BY name
    ON CONFLICT (schedule, nominal) DO NOTHING
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $5::text, 'schedule resume', name FROM resumed ORDER BY name
)
SELECT name FROM resumed ORDER BY name
