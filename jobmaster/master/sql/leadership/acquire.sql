-- acquire: take the leader's lease when it is vacant, or keep it
-- in: $1 uuid agent
-- in: $2 integer weight
-- in: $3 double precision lease, seconds
-- out: epoch bigint (no row: another holds it)
-- move: nothing
-- fence: compare-and-set on the lease row: mine, given back, expired, or of an agent that has ended. Every change of the owner
--        adds one to the epoch. While a heavier living agent could lead, a lighter one waits half a lease longer, so that
--        the heavier finds it vacant.
-- index: lease_pkey
INSERT INTO lease AS l (name, owner, weight, epoch, expires_at)
VALUES ('leader', $1::uuid, $2::integer, 1, clock_timestamp() + make_interval(secs => $3::double precision))
ON CONFLICT (name) DO UPDATE
SET owner = EXCLUDED.owner, weight = EXCLUDED.weight, expires_at = EXCLUDED.expires_at,
    epoch = CASE WHEN l.owner = EXCLUDED.owner THEN l.epoch ELSE l.epoch + 1 END
WHERE l.owner = EXCLUDED.owner
   OR l.owner IS NULL
   OR EXISTS (SELECT FROM agent a WHERE a.id = l.owner AND a.state IN ('DEAD', 'RETIRED'))
   OR l.expires_at + CASE WHEN EXISTS (
          SELECT FROM agent a
          WHERE a.weight > $2 AND a.id <> $1 AND a.mode IN ('full', 'leader') AND a.state = 'ACTIVE'
            AND a.lease_until > clock_timestamp() AND NOT a.drain_requested
      ) THEN make_interval(secs => $3 / 2) ELSE interval '0' END < clock_timestamp()
RETURNING epoch
