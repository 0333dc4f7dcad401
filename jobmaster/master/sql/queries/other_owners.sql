-- other_owners: which handlers other agents have that own an ACTIVE bucket of a lane and priority
-- in: $1 uuid agent
-- in: $2 text lane
-- in: $3 smallint priority
-- in: $4 text[] handlers that are of interest
-- out: handlers text[]
-- move: nothing
-- fence: none: a hint for an owner whose jobs wait too long; jobs that it gives back in vain come back to it
-- index: bucket_owner; the table of agents is small
SELECT coalesce(array_agg(DISTINCT handler), '{}') AS handlers
FROM agent a, unnest(a.handlers) AS handler
WHERE a.id <> $1::uuid AND a.state = 'ACTIVE' AND NOT a.drain_requested AND a.lease_until > clock_timestamp()
  AND handler = ANY ($4::text[])
  AND EXISTS (SELECT FROM bucket b WHERE b.owner = a.id AND b.state = 'ACTIVE' AND b.lane = $2::text AND b.priority = $3::smallint)
