-- resurrect_retired: the keys of a retired bucket hold jobs again (its store was restored): it is LOST, and a rescuer moves them
-- in: $1 uuid bucket
-- in: $2 bigint epoch
-- in: $3 text reason
-- out: resurrected boolean (also true when it is LOST already)
-- move: READY_TO_DELETE -> LOST
-- fence: compare-and-set on (id, epoch, state). A statement of its own, so that no owner takes its own retired bucket for a
--        lost one; the event names no actor, because no owner has done it (I14 reads that).
-- index: bucket_pkey
WITH before AS MATERIALIZED (
    SELECT id, state FROM bucket WHERE id = $1::uuid AND epoch = $2::bigint FOR UPDATE
), after AS (
    UPDATE bucket b SET state = 'LOST', changed_at = clock_timestamp()
    FROM before
    WHERE b.id = before.id AND before.state = 'READY_TO_DELETE'
    RETURNING b.id
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, reason)
    SELECT id, 'READY_TO_DELETE', 'LOST', $2, $3::text FROM after
)
SELECT EXISTS (SELECT FROM after) OR EXISTS (SELECT FROM before WHERE state = 'LOST') AS resurrected
