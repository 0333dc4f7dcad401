-- end_dead_sessions: end the database sessions of dead owners of lost buckets
-- in: nothing
-- out: ended boolean
-- move: nothing
-- fence: only of agents with a death certificate: an agent that declared its own bucket lost lives on. A frozen client
--        inside a COPY holds its row locks, and no statement time-out ends it; so it goes before its jobs are touched.
-- index: none; pg_stat_activity and small tables
SELECT pg_terminate_backend(s.pid, 2000) AS ended
FROM pg_stat_activity s
WHERE s.datname = current_database()
  AND s.usename = current_user
  AND s.pid <> pg_backend_pid()
  AND s.application_name IN (
      SELECT a.id::text FROM agent a
      WHERE a.state = 'DEAD' AND EXISTS (SELECT FROM bucket b WHERE b.owner = a.id AND b.state = 'LOST'))
