-- I10: one job per nominal time of a schedule, and no fire without a line.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (schedule and nominal time), detail, total
-- why:   a second job of a fire may exist only as CANCELLED (its schedule was changed before its time); a job of a fire has a line
--        that names it, and a line names a job that exists; between two decided fires of a definition lies no fire without a line.
-- index: primary key of job, one pass from $2 on; primary key of schedule_fire.
WITH made AS MATERIALIZED (
    -- A NUL, allowed in metadata, is no text for PostgreSQL: it is left out before a field is taken.
    SELECT id, state, headers ->> 'schedule' AS schedule, from_us((headers ->> 'nominal_us')::bigint) AS nominal
    FROM (
        SELECT id, state,
               regexp_replace(convert_from(headers, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json AS headers
        FROM job
        WHERE id >= $2::uuid AND position('"nominal_us":'::bytea IN headers) > 0
    ) j
    -- Also metadata may contain what is searched for: a job of a fire has these two fields in the headers themselves.
    WHERE headers ->> 'schedule' IS NOT NULL AND headers ->> 'nominal_us' IS NOT NULL
)
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT format('%s %s', schedule, nominal) AS subject,
           format('%s jobs, the first %s, the last %s', count(*), min(id::text), max(id::text)) AS detail
    FROM made
    WHERE state <> 'CANCELLED'
    GROUP BY schedule, nominal
    HAVING count(*) > 1
    UNION ALL
    SELECT format('%s %s', m.schedule, m.nominal), format('no line names its job %s (%s)', m.id, m.state)
    FROM made m
    WHERE m.state NOT IN ('CANCELLED', 'SUCCEEDED', 'FAILED', 'EXPIRED')  -- lines have a retention of their own
      AND NOT EXISTS (SELECT FROM schedule_fire f WHERE f.schedule = m.schedule AND f.nominal = m.nominal AND f.job_id = m.id)
    UNION ALL
    SELECT format('%s %s', f.schedule, f.nominal), format('its job %s does not exist', f.job_id)
    FROM schedule_fire f
    WHERE f.job_id >= $2 AND NOT EXISTS (SELECT FROM job j WHERE j.id = f.job_id)
    UNION ALL
    SELECT format('%s %s', f.schedule, f.nominal), format('the fire before it, %s, has no line', f.previous)
    FROM schedule_fire f
    WHERE f.previous IS NOT NULL
      AND NOT EXISTS (SELECT FROM schedule_fire p WHERE p.schedule = f.schedule AND p.nominal = f.previous)
      AND EXISTS (SELECT FROM schedule_fire p WHERE p.schedule = f.schedule AND p.nominal < f.previous AND NOT p.manual)
    UNION ALL
    SELECT format('%s %s', s.name, s.last_fire), 'it was decided and has no line'
    FROM schedule s
    WHERE s.last_fire IS NOT NULL AND s.retired_at IS NULL  -- the lines of a retired schedule are forgotten first
      AND NOT EXISTS (SELECT FROM schedule_fire f WHERE f.schedule = s.name AND f.nominal = s.last_fire)
) found
ORDER BY subject
LIMIT $1::int
