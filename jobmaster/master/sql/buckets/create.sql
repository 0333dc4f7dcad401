-- create: new buckets of a living owner
-- in: $1 uuid owner
-- in: $2 uuid[] ids
-- in: $3 text[] stores
-- in: $4 text[] lanes
-- in: $5 smallint[] priorities
-- out: owner_ok boolean, created uuid[]
-- move: none -> ACTIVE
-- fence: the owner's row, ACTIVE, locked FOR SHARE: a certificate comes before (no buckets) or after (they are seen)
-- index: agent_pkey, bucket_pkey
WITH a AS MATERIALIZED (
    SELECT 1 FROM agent WHERE id = $1::uuid AND state = 'ACTIVE' FOR SHARE
), made AS (
    INSERT INTO bucket (id, store, lane, priority, owner)
    SELECT id, store, lane, priority, $1
    FROM a, unnest($2::uuid[], $3::text[], $4::text[], $5::smallint[]) AS new (id, store, lane, priority)
    ORDER BY id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, epoch
), logged AS (
    INSERT INTO bucket_event (bucket_id, to_state, epoch, actor, reason)
    SELECT id, 'ACTIVE', epoch, $1, 'created' FROM made
)
SELECT EXISTS (SELECT FROM a) AS owner_ok, coalesce(array_agg(id), '{}') AS created FROM made
