-- lose: the buckets of agents that have ended are lost
-- in: $1 text reason
-- out: id uuid
-- move: ACTIVE|COMPLETING|FROZEN|DRAINING -> LOST
-- fence: after the certificate in the same transaction, as a statement of its own: its snapshot is younger than the lock on
--        the agent's row and so shows every bucket made before the certificate. Also finds buckets that an earlier
--        certificate missed.
-- index: bucket_owner; the table is small
WITH ended AS MATERIALIZED (
    SELECT b.id, b.state, b.epoch, b.owner FROM bucket b
    WHERE b.state IN ('ACTIVE', 'COMPLETING', 'FROZEN', 'DRAINING')
      AND EXISTS (SELECT FROM agent a WHERE a.id = b.owner AND a.state IN ('DEAD', 'RETIRED'))
    ORDER BY b.id
    FOR UPDATE OF b
), lost AS (
    UPDATE bucket b SET state = 'LOST', changed_at = clock_timestamp() FROM ended WHERE b.id = ended.id RETURNING b.id
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, actor, reason)
    SELECT id, state, 'LOST', epoch, owner, $1::text FROM ended
)
SELECT id FROM lost
