-- agents: agents, the living first
-- in: $1 boolean true: those that have ended too
-- out: id uuid, name text, host text, pid integer, version text, mode text, store text, weight integer, state text, lanes
--      text[], handlers text[], drain_requested boolean, beats bigint, lease_seconds double precision, ended_reason text,
--      lease_left_seconds double precision, started_us bigint, ended_us bigint, buckets bigint,
--      settings text (JSON), clock_ahead_seconds double precision (at its registration), statistics text (JSON, NULL: none),
--      statistics_us bigint (when they were published)
-- move: nothing
-- fence: none
-- index: none; there are few agents
SELECT a.id, a.name, a.host, a.pid, a.version, a.mode, a.store, a.weight, a.state::text AS state, a.lanes, a.handlers,
       a.drain_requested, a.beats, a.lease_seconds, a.ended_reason,
       extract(epoch FROM a.lease_until - clock_timestamp())::double precision AS lease_left_seconds,
       (extract(epoch FROM a.started_at) * 1000000)::bigint AS started_us,
       (extract(epoch FROM a.ended_at) * 1000000)::bigint AS ended_us,
       (SELECT count(*) FROM bucket b WHERE b.owner = a.id AND b.state <> 'READY_TO_DELETE') AS buckets,
       a.settings::text AS settings, a.clock_ahead_seconds, a.statistics::text AS statistics,
       (extract(epoch FROM a.statistics_at) * 1000000)::bigint AS statistics_us
FROM agent a
WHERE $1::boolean OR a.state IN ('ACTIVE', 'STOPPING')
ORDER BY a.state, a.name, a.started_at
