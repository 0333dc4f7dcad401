-- followers: the living agents that run jobs, and whether they obey a version of the pauses
-- in: $1 bigint version
-- out: id uuid, name text, host text, pid integer, obeys boolean
-- move: nothing
-- fence: none. An agent lives until its certificate: one whose lease ran out may still start jobs
-- index: none; the table of agents is small
SELECT id, name, host, pid, coalesce(pauses_obeyed >= $1::bigint, false) AS obeys
FROM agent
WHERE state IN ('ACTIVE', 'STOPPING') AND mode IN ('full', 'execution')
ORDER BY name, started_at, id
