-- generation: the generation of an agent store that this cluster uses; the first caller sets it
-- in: $1 text store
-- in: $2 uuid generation to store when there is none
-- out: generation uuid, served boolean (a bucket names the store, so the store was initialised before this statement)
-- move: nothing
-- fence: primary key; DO UPDATE without a change, so that the present row is returned to the loser of the race, too
-- index: agent_store_pkey; the table of buckets is small
INSERT INTO agent_store AS s (name, generation)
VALUES ($1::text, $2::uuid)
ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name
RETURNING s.generation, EXISTS (SELECT FROM bucket b WHERE b.store = s.name) AS served
