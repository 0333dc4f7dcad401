-- publish_slots: how many jobs an agent may run at once, after a reload of its configuration
-- in: $1 uuid agent
-- in: $2 integer slots
-- out: nothing
-- move: nothing
-- fence: none: a figure for people and autoscalers
-- index: agent_pkey
UPDATE agent SET slots = $2::integer WHERE id = $1::uuid
