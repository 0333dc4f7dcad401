-- retention: the leader's last look for ranges past the lifetime of jobs
-- in: nothing
-- out: agent text (its name, or its id when its row is gone), ago_seconds double precision, after_seconds double precision,
--      discards boolean, blocked text
-- move: nothing
-- fence: none
-- index: none; one row
SELECT coalesce(a.name, r.agent_id::text) AS agent,
       extract(epoch FROM clock_timestamp() - r.looked_at)::double precision AS ago_seconds,
       r.after_seconds, r.discards, r.blocked
FROM retention_run r
LEFT JOIN agent a ON a.id = r.agent_id
