-- 0018 leader: the agent that leads is called leader, in its lease, in the mode of an agent and in the view of agents.

UPDATE lease SET name = 'leader' WHERE name = 'coordinator';
UPDATE agent SET mode = 'leader' WHERE mode = 'coordinator';

-- A column of a view can be renamed in place only; the view itself is replaced, so that its grants stay.
ALTER VIEW agent_status RENAME COLUMN coordinator TO leader;
CREATE OR REPLACE VIEW agent_status AS
SELECT a.id,
       a.name,
       a.host,
       a.pid,
       a.version,
       a.mode,
       a.store,
       a.weight,
       a.state::text AS state,
       a.state IN ('ACTIVE', 'STOPPING') AND a.lease_until > clock_timestamp() AS healthy,
       a.lease_until,
       a.lease_seconds,
       a.drain_requested,
       a.started_at,
       a.ended_at,
       a.ended_reason,
       a.lanes,
       a.handlers,
       coalesce(l.owner = a.id AND l.expires_at > clock_timestamp(), false) AS leader,
       (SELECT count(*) FROM bucket b WHERE b.owner = a.id AND b.state <> 'READY_TO_DELETE') AS buckets
FROM agent a
LEFT JOIN lease l ON l.name = 'leader';
