-- take_lost: one lost bucket is taken to be drained, under a new epoch
-- in: $1 uuid rescuer
-- in: $2 text[] stores that it can reach
-- in: $3 uuid[] buckets whose store was found at a higher epoch
-- in: $4 bigint[] that epoch
-- out: id uuid, store text, lane text, priority smallint, state text, epoch bigint, owner uuid, changed_at timestamptz
-- move: LOST -> DRAINING
-- fence: FOR UPDATE SKIP LOCKED: two rescuers never get the same bucket; the rescuer is alive, its row locked FOR SHARE, so
--        that its own certificate comes before (nothing) or after (the bucket is seen). The lock waits for nothing of the
--        old owner: its last binding write ends before or is refused by the new epoch. The former owner stays known over every
--        rescuer until the rows are swept: until then what was lent to it is taken.
-- index: bucket_lost, the lost ones in the order in which they are taken
WITH me AS MATERIALIZED (
    SELECT 1 FROM agent WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING') FOR SHARE
), lost AS MATERIALIZED (
    SELECT b.id, b.owner FROM bucket b
    WHERE b.state = 'LOST' AND b.store = ANY ($2::text[]) AND EXISTS (SELECT FROM me)
    ORDER BY b.priority DESC, b.changed_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE bucket b
    SET state = 'DRAINING', owner = $1, former_owner = coalesce(b.former_owner, b.owner), changed_at = clock_timestamp(),
        epoch = greatest(b.epoch, (SELECT max(f.epoch) FROM unnest($3::uuid[], $4::bigint[]) AS f (id, epoch)
                                   WHERE f.id = b.id)) + 1
    FROM lost
    WHERE b.id = lost.id
    RETURNING b.*
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, actor, reason)
    SELECT id, 'LOST', 'DRAINING', epoch, $1, 'taken from ' || (SELECT owner FROM lost) FROM taken
)
SELECT id, store, lane, priority, state::text AS state, epoch, owner, changed_at FROM taken
