-- declare: names of schedules that an agent declares, beside those that it has declared before: in its code, in its configuration
-- in: $1 uuid agent
-- in: $2 text[] names
-- out: started_at timestamptz
-- move: nothing
-- fence: none: the agent alone writes it, once for each source
-- index: agent_pkey (HOT: nothing indexed changes)
UPDATE agent SET schedules = ARRAY (SELECT DISTINCT name FROM unnest(schedules || $2::text[]) AS name ORDER BY name)
WHERE id = $1::uuid RETURNING started_at
