-- agents: the agents of the cluster
-- in: $1 boolean also those that have ended
-- out: id uuid, name text, host text, pid integer, version text, mode text, store text, weight integer, state text, lease_until timestamptz, lease_seconds double precision, started_at timestamptz
-- move: nothing
-- fence: none
-- index: none; the table is small
SELECT id, name, host, pid, version, mode, store, weight, state::text AS state, lease_until, lease_seconds, started_at
FROM agent
WHERE $1::boolean OR state IN ('ACTIVE', 'STOPPING')
ORDER BY started_at
