-- unfreeze: an operator unfreezes buckets, under a new epoch
-- in: $1 uuid[] buckets, NULL = whichever they are
-- in: $2 text lane, NULL = every lane
-- in: $3 text the actor
-- in: $4 text reason
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: FROZEN -> ACTIVE
-- fence: compare-and-set on the state, locked in id order; the epoch grows, so that what was assigned or claimed before the
--        freeze and was lost by its owner differs from what comes now. The owner stays: it adopts the epoch, or dies
--        and its bucket is lost as any other.
-- index: bucket_pkey; the table is small
WITH chosen AS MATERIALIZED (
    SELECT id FROM bucket
    WHERE state = 'FROZEN' AND ($1::uuid[] IS NULL OR id = ANY ($1)) AND ($2::text IS NULL OR lane = $2)
    ORDER BY id
    FOR UPDATE
), unfrozen AS (
    UPDATE bucket b SET state = 'ACTIVE', epoch = b.epoch + 1, changed_at = clock_timestamp()
    FROM chosen WHERE b.id = chosen.id
    RETURNING b.*
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, reason)
    SELECT id, 'FROZEN', 'ACTIVE', epoch, 'unfrozen by ' || $3::text || ': ' || $4::text FROM unfrozen
), noted AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $3, 'bucket unfreeze', id::text, jsonb_build_object('reason', $4, 'epoch', epoch) FROM unfrozen
)
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at FROM unfrozen
