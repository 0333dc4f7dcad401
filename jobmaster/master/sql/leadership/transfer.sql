-- transfer: the leader's lease goes to the heaviest agent that could lead, when that is heavier than its holder
-- in: $1 uuid agent
-- in: $2 integer weight
-- in: $3 bigint epoch
-- out: heir uuid (no row: no agent is heavier any more, or another agent leads already)
-- move: nothing
-- fence: compare-and-set on owner and epoch; epoch + 1. The heir reads its id in its next renewal, so it has the lease
--        for as long as its own lease is: no vacancy in between that a third agent could fill. Should it end before, its
--        lease is vacant at once.
-- index: lease_pkey; the table of agents is small
UPDATE lease l
SET owner = heir.id, weight = heir.weight, epoch = l.epoch + 1,
    expires_at = clock_timestamp() + make_interval(secs => heir.lease_seconds)
FROM (
    SELECT id, weight, lease_seconds FROM agent
    WHERE weight > $2::integer AND mode IN ('full', 'leader') AND state = 'ACTIVE' AND NOT drain_requested
      AND lease_until > clock_timestamp() AND started_at + make_interval(secs => lease_seconds) < clock_timestamp()
    ORDER BY weight DESC, started_at, id
    LIMIT 1
) heir
WHERE l.name = 'leader' AND l.owner = $1::uuid AND l.epoch = $3::bigint
RETURNING heir.id AS heir
