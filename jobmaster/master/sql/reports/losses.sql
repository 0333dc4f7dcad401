-- losses: buckets that their stores have lost under a living owner, the latest first
-- in: $1 double precision seconds back from now
-- in: $2 integer limit
-- out: bucket_id uuid, store text, at_us bigint, ago_seconds double precision, at_risk integer, salvaged integer, reason text
-- move: nothing
-- fence: none
-- index: none, the table is small
SELECT bucket_id, store, (extract(epoch FROM at) * 1000000)::bigint AS at_us,
       extract(epoch FROM clock_timestamp() - at)::double precision AS ago_seconds, at_risk, salvaged, reason
FROM store_loss
WHERE at > clock_timestamp() - make_interval(secs => $1::double precision)
ORDER BY at DESC
LIMIT $2::integer
