-- I13: one leader per epoch.
-- in:    $1 evidence rows
-- out:   subject (name of the lease), detail, total
-- why:   one row per named lease; two rows, or a lease that runs without an owner or an epoch, could let two lead at once.
-- index: primary key of lease.
SELECT subject, detail, count(*) OVER () AS total
FROM (
    SELECT name AS subject, format('%s rows of this lease', count(*)) AS detail
    FROM lease
    GROUP BY name
    HAVING count(*) > 1
    UNION ALL
    SELECT name, format('held until %s, but epoch %s was never taken', expires_at, epoch)
    FROM lease
    WHERE owner IS NOT NULL AND epoch < 1 AND expires_at > clock_timestamp()
) found
ORDER BY subject
LIMIT $1::int
