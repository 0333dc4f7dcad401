-- remove: schedules are retired by a person; the lines of their fires stay for their retention
-- in: $1 text[] names, NULL = all
-- in: $2 text tag, NULL = any
-- in: $3 text actor
-- out: name text
-- move: nothing
-- fence: compare-and-set on retired_at, in the order of names
-- index: schedule_pkey; by tag the whole table, which is small
WITH chosen AS MATERIALIZED (
    SELECT name FROM schedule
    WHERE ($1::text[] IS NULL OR name = ANY ($1)) AND ($2::text IS NULL OR $2 = ANY (tags)) AND retired_at IS NULL
    ORDER BY name
    FOR UPDATE
), removed AS (
    UPDATE schedule s
    SET retired_at = clock_timestamp(), retired_reason = 'removed by ' || $3::text, decide_at = NULL,
        revision = s.revision + 1, changed_at = clock_timestamp()
    FROM chosen c WHERE s.name = c.name
    RETURNING s.name
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $3, 'schedule remove', name FROM removed ORDER BY name
)
SELECT name FROM removed ORDER BY name
