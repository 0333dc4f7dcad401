-- host_standing: whether the host of an agent is cordoned, and which of its buckets other hosts can have instead
-- in: $1 uuid agent
-- in: $2 integer deaths from which a host is cordoned (0: never)
-- in: $3 double precision for how long, seconds after the last death
-- out: host text, deaths bigint, left_seconds double precision, lanes text[], priorities smallint[] (of ACTIVE buckets of living
--      agents on other hosts that have every handler of this agent; no row: the host is not cordoned)
-- move: nothing
-- fence: none; the answer is advice
-- index: none; agents and buckets are small tables
SELECT f.host, f.deaths, f.left_seconds,
       coalesce(array_agg(s.lane ORDER BY s.lane, s.priority) FILTER (WHERE s.lane IS NOT NULL), '{}') AS lanes,
       coalesce(array_agg(s.priority ORDER BY s.lane, s.priority) FILTER (WHERE s.lane IS NOT NULL), '{}') AS priorities
FROM flapping_hosts($2::integer, $3::double precision) f
JOIN agent me ON me.id = $1::uuid AND me.host = f.host
LEFT JOIN LATERAL (
    SELECT DISTINCT b.lane, b.priority
    FROM bucket b
    JOIN agent o ON o.id = b.owner
    WHERE b.state = 'ACTIVE' AND o.state = 'ACTIVE' AND o.lease_until > clock_timestamp() AND o.host <> me.host
      AND o.handlers @> me.handlers
) s ON true
GROUP BY f.host, f.deaths, f.left_seconds
