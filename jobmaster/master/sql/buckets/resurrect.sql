-- resurrect: keys of a bucket that has no row hold jobs: it gets a row again, as LOST
-- in: $1 uuid owner, which never serves it
-- in: $2 uuid bucket
-- in: $3 text store
-- in: $4 text lane
-- in: $5 smallint priority
-- in: $6 text reason
-- out: resurrected boolean (false: the bucket has a row, or the owner has ended)
-- move: none -> LOST
-- fence: the primary key; the owner's row, ACTIVE, locked FOR SHARE. LOST from the start: between an ACTIVE row and a second
--        statement the caller may be interrupted, and a bucket of a living owner that does not serve it waits for ever. The
--        epoch is above all epochs in its events, so that no epoch is given out twice.
-- index: agent_pkey, bucket_pkey, bucket_event_bucket
WITH a AS MATERIALIZED (
    SELECT 1 FROM agent WHERE id = $1::uuid AND state = 'ACTIVE' FOR SHARE
), made AS (
    INSERT INTO bucket (id, store, lane, priority, state, owner, epoch)
    SELECT $2::uuid, $3::text, $4::text, $5::smallint, 'LOST', $1,
           coalesce((SELECT max(epoch) FROM bucket_event WHERE bucket_id = $2), 0) + 1
    FROM a
    ON CONFLICT (id) DO NOTHING
    RETURNING id, epoch
), logged AS (
    INSERT INTO bucket_event (bucket_id, to_state, epoch, actor, reason)
    SELECT id, 'LOST', epoch, $1, $6::text FROM made
)
SELECT EXISTS (SELECT FROM made) AS resurrected
