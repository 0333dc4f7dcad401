-- declare: the names of the schedules that an agent's code and configuration declare
-- in: $1 uuid agent
-- in: $2 text[] names
-- out: started_at timestamptz
-- move: nothing
-- fence: none: the agent alone writes it, once
-- index: agent_pkey (HOT: nothing indexed changes)
UPDATE agent SET schedules = $2::text[] WHERE id = $1::uuid RETURNING started_at
