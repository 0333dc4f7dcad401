-- pause: schedules are paused by a person; nothing of them fires until they are resumed
-- in: $1 text[] names, NULL = all
-- in: $2 text tag, NULL = any
-- in: $3 text actor
-- in: $4 text reason
-- out: name text
-- move: nothing
-- fence: compare-and-set on paused_at and retired_at, in the order of names
-- index: schedule_pkey; by tag the whole table, which is small
WITH chosen AS MATERIALIZED (
    SELECT name FROM schedule
    WHERE ($1::text[] IS NULL OR name = ANY ($1)) AND ($2::text IS NULL OR $2 = ANY (tags))
      AND paused_at IS NULL AND retired_at IS NULL
    ORDER BY name
    FOR UPDATE
), paused AS (
    UPDATE schedule s
    SET paused_at = clock_timestamp(), paused_by = $3::text, paused_reason = $4::text, decide_at = NULL,
        revision = s.revision + 1, changed_at = clock_timestamp()
    FROM chosen c WHERE s.name = c.name
    RETURNING s.name
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $3, 'schedule pause', name, jsonb_build_object('reason', $4) FROM paused ORDER BY name
)
SELECT name FROM paused ORDER BY name
