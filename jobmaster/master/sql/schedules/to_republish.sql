-- to_republish: schedules of which an agent declares another definition than the present one, which no living agent declares
-- in: $1 text[] names
-- in: $2 text[] digests of the agent's definitions
-- out: name text
-- move: nothing
-- fence: none; schedules/put decides under the lock of the row
-- index: schedule_pkey; the digests that living agents declare are hashed, and only when a definition differs
SELECT s.name
FROM unnest($1::text[], $2::text[]) AS mine (name, digest) JOIN schedule s ON s.name = mine.name
WHERE s.digest <> mine.digest AND s.source <> 'api' AND s.retired_at IS NULL
  AND s.digest NOT IN (SELECT unnest(a.schedule_digests) FROM agent a WHERE a.state IN ('ACTIVE', 'STOPPING'))
