-- I9: one job per idempotency key, and one at a time per unique key.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (the key), detail, total
-- why:   a second job with an idempotency key of its handler may exist only as CANCELLED or EXPIRED (it never ran); a key
--        must not point at a job with another key. Two jobs that live must not have one unique key that is held while they
--        live, and no two windows of a unique key may overlap, unless a job was cancelled or replaced.
-- index: primary key of job, one pass from $2 on; primary keys of idempotency and unique_key.
WITH found AS MATERIALIZED (
    -- A NUL, allowed in metadata, is no text for PostgreSQL: it is left out before a field is taken.
    SELECT id, handler, state, regexp_replace(convert_from(headers, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json AS fields
    FROM job
    WHERE id >= $2::uuid AND (position('"key"'::bytea IN headers) > 0 OR position('"unique_key"'::bytea IN headers) > 0)
), keyed AS (
    SELECT id, handler, state, fields ->> 'key' AS key FROM found
), uniques AS (
    SELECT id, handler, state, fields ->> 'unique_key' AS key, fields ->> 'unique_term' AS term,
           (fields ->> 'unique_from_us')::bigint AS from_us, (fields ->> 'unique_until_us')::bigint AS until_us
    FROM found
    WHERE fields ->> 'unique_key' IS NOT NULL AND fields ->> 'superseded_by' IS NULL
), windows AS (
    SELECT handler, key, id, from_us, lag(id) OVER later AS before, lag(until_us) OVER later AS before_until_us
    FROM uniques
    WHERE term = 'window' AND state NOT IN ('CANCELLED', 'EXPIRED')
    WINDOW later AS (PARTITION BY handler, key ORDER BY from_us, until_us)
)
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT handler || ' ' || key AS subject, format('%s jobs, the first %s, the last %s', count(*), min(id::text), max(id::text)) AS detail
    FROM keyed
    WHERE key IS NOT NULL AND state NOT IN ('CANCELLED', 'EXPIRED')
    GROUP BY handler, key
    HAVING count(*) > 1
    UNION ALL
    SELECT i.scope || ' ' || i.key, format('points at job %s, which has the key %s of %s', i.job_id, COALESCE(k.key, '(none)'), k.handler)
    FROM idempotency i
    JOIN keyed k ON k.id = i.job_id
    WHERE k.key IS DISTINCT FROM i.key OR k.handler <> i.scope
    UNION ALL
    SELECT handler || ' ' || key, format('%s jobs that live, the first %s, the last %s', count(*), min(id::text), max(id::text))
    FROM uniques
    WHERE term = 'live' AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
    GROUP BY handler, key
    HAVING count(*) > 1
    UNION ALL
    SELECT handler || ' ' || key, format('the window of job %s began in that of job %s', id, before)
    FROM windows
    WHERE from_us < before_until_us
    UNION ALL
    SELECT u.handler || ' ' || u.key, format('points at job %s, which has the unique key %s of %s', u.job_id, COALESCE(k.key, '(none)'), k.handler)
    FROM unique_key u
    JOIN uniques k ON k.id = u.job_id
    WHERE k.key IS DISTINCT FROM u.key OR k.handler <> u.handler
) all_found
ORDER BY subject
LIMIT $1::int
