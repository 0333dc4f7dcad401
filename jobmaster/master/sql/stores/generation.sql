-- generation: which generation of an agent store this cluster works with; the first to ask decides
-- in: $1 text store
-- in: $2 uuid generation to remember when none is known
-- out: generation uuid
-- move: nothing
-- fence: primary key; DO UPDATE without a change, so that the row that stands is returned also to who lost the race
-- index: agent_store_pkey
INSERT INTO agent_store AS s (name, generation)
VALUES ($1::text, $2::uuid)
ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name
RETURNING s.generation
