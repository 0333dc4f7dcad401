-- declare: names and definitions of schedules that an agent declares, beside those that it has declared before: in its code, in its configuration
-- in: $1 uuid agent
-- in: $2 text[] names
-- in: $3 text[] digests of their definitions
-- out: started_at timestamptz
-- move: nothing
-- fence: none: the agent alone writes it, once for each source
-- index: agent_pkey (HOT: nothing indexed changes)
UPDATE agent SET schedules = ARRAY (SELECT DISTINCT name FROM unnest(schedules || $2::text[]) AS name ORDER BY name),
                 schedule_digests = ARRAY (SELECT DISTINCT digest FROM unnest(schedule_digests || $3::text[]) AS digest)
WHERE id = $1::uuid RETURNING started_at
