-- I9: one job per idempotency key.
-- in:    $1 evidence rows, $2 lowest job id looked at
-- out:   subject (the key), detail, total
-- why:   a second job with a key of its handler may exist only as CANCELLED or EXPIRED (it never ran); a key must
--        not point at a job with another key.
-- index: primary key of job, one pass from $2 on; primary key of idempotency.
WITH keyed AS (
    -- A NUL, allowed in metadata, is no text for PostgreSQL: it is left out before a field is taken.
    SELECT id, handler, state,
           regexp_replace(convert_from(headers, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json ->> 'key' AS key
    FROM job
    WHERE id >= $2::uuid AND position('"key"'::bytea IN headers) > 0
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
) found
ORDER BY subject
LIMIT $1::int
