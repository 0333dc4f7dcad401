-- forget_agents: agents that ended long ago
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: only of those that have ended, and own no bucket any more: while one waits for its rescue, the rows of the dead are needed. A
--        frozen agent whose row is gone reads that with its next renewal, as it would read a certificate.
-- index: agent_pkey, bucket_owner, bucket_former_owner; the table is small
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT a.id FROM agent a
    WHERE a.state IN ('DEAD', 'RETIRED')
      AND a.ended_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND NOT EXISTS (SELECT FROM bucket b WHERE b.owner = a.id)
      AND NOT EXISTS (SELECT FROM bucket b WHERE b.former_owner = a.id)
    ORDER BY a.id
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM agent a USING old WHERE a.id = old.id RETURNING a.id
)
SELECT count(*) AS forgotten FROM gone
