-- stores: agent stores that have a row in the master
-- in: nothing
-- out: name text, generation uuid, state text, changed_us bigint
-- move: nothing
-- fence: none
-- index: none
SELECT name, generation, state, (extract(epoch FROM changed_at) * 1000000)::bigint AS changed_us FROM agent_store ORDER BY name
