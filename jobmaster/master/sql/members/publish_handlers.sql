-- publish_handlers: what agents can run, for producers without the handlers' code
-- in: $1 uuid agent
-- in: $2 text[] names
-- in: $3 text[] specs (JSON)
-- in: $4 text[] digests
-- out: nothing
-- move: nothing
-- fence: locked in the order of names; a spec that is known is not touched
-- index: handler_pkey, as the arbiter
INSERT INTO handler AS h (name, spec, digest, published_by)
SELECT name, spec::jsonb, digest, $1::uuid
FROM unnest($2::text[], $3::text[], $4::text[]) AS new (name, spec, digest)
ORDER BY name
ON CONFLICT (name) DO UPDATE
SET spec = EXCLUDED.spec, digest = EXCLUDED.digest, published_by = EXCLUDED.published_by, published_at = clock_timestamp()
WHERE h.digest <> EXCLUDED.digest
