-- register: an agent's row with a fresh lease
-- in: $1 uuid id
-- in: $2 text name
-- in: $3 text host
-- in: $4 integer pid
-- in: $5 text version
-- in: $6 text mode
-- in: $7 text store
-- in: $8 integer weight
-- in: $9 double precision lease, seconds
-- in: $10 text[] lanes
-- in: $11 text[] handlers
-- in: $12 double precision share of the jobs
-- in: $13 text[] lanes it helps out in
-- in: $14 text settings, JSON
-- in: $15 bigint its wall clock, microseconds since 1970 (NULL: unknown)
-- in: $16 text[] capabilities of its program
-- in: $17 integer jobs that it may run at once
-- out: id uuid, mode text (of the cluster)
-- move: none -> ACTIVE
-- fence: the primary key; sent again it only renews; an agent that has ended stays ended
-- index: agent_pkey
INSERT INTO agent AS a (id, name, host, pid, version, mode, store, weight, lease_until, lease_seconds, lanes, handlers,
                        share, helps, settings, clock_ahead_seconds, capabilities, slots)
VALUES ($1::uuid, $2::text, $3::text, $4::integer, $5::text, $6::text, $7::text, $8::integer,
        clock_timestamp() + make_interval(secs => $9::double precision), $9, $10::text[], $11::text[], $12::double precision, $13::text[],
        $14::text::jsonb, $15::bigint / 1e6 - extract(epoch FROM clock_timestamp())::double precision,
        $16::text[], $17::integer)
ON CONFLICT (id) DO UPDATE SET lease_until = EXCLUDED.lease_until, lease_seconds = EXCLUDED.lease_seconds
WHERE a.state = 'ACTIVE'
RETURNING id, (SELECT mode FROM cluster) AS mode
