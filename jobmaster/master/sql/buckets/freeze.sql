-- freeze: an operator freezes buckets: their owners claim, start and assign nothing there until they are unfrozen
-- in: $1 uuid[] buckets, NULL = whichever they are
-- in: $2 text lane, NULL = every lane
-- in: $3 text the actor
-- in: $4 text reason
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: ACTIVE -> FROZEN
-- fence: compare-and-set on the state, locked in id order. A binding write holds this row FOR SHARE: it is committed
--        before, or refused after. Outcomes need only the identity on the job's row and go on.
-- index: bucket_pkey; the table is small
WITH chosen AS MATERIALIZED (
    SELECT id FROM bucket
    WHERE state = 'ACTIVE' AND ($1::uuid[] IS NULL OR id = ANY ($1)) AND ($2::text IS NULL OR lane = $2)
    ORDER BY id
    FOR UPDATE
), frozen AS (
    UPDATE bucket b SET state = 'FROZEN', changed_at = clock_timestamp() FROM chosen WHERE b.id = chosen.id RETURNING b.*
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, reason)
    SELECT id, 'ACTIVE', 'FROZEN', epoch, 'frozen by ' || $3::text || ': ' || $4::text FROM frozen
), noted AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $3, 'bucket freeze', id::text, jsonb_build_object('reason', $4, 'epoch', epoch) FROM frozen
)
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at FROM frozen
