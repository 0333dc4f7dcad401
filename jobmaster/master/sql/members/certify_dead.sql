-- certify_dead: death certificates for agents whose lease ran out
-- in: $1 uuid certifier
-- in: $2 integer limit
-- out: id uuid
-- move: ACTIVE|STOPPING -> DEAD
-- fence: compare-and-set on the agent's own row. The condition on the lease stands on the row that is updated, so a renewal
--        that commits first is seen; a join on the lease would not be read again. The certifier's own standing is read from
--        its row without a lock: it has held its lease without a gap for a full term of its own and of the suspect, and
--        the server has been up as long, so after an outage every agent renews before any lease is checked. The certificate says
--        nothing about the process, which may be suspended: what was lent to it stays taken until its buckets are rescued.
-- index: agent_pkey; the table is small
WITH certifier AS (
    SELECT held_since, lease_seconds FROM agent
    WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING') AND lease_until > clock_timestamp()
), suspect AS MATERIALIZED (
    SELECT a.id
    FROM agent a, certifier
    WHERE a.state IN ('ACTIVE', 'STOPPING')
      AND a.lease_until < clock_timestamp()
      AND a.id <> $1
      AND greatest(certifier.held_since, pg_postmaster_start_time())
          + make_interval(secs => greatest(certifier.lease_seconds, a.lease_seconds)) <= clock_timestamp()
    ORDER BY a.lease_until
    LIMIT $2::integer
    FOR UPDATE OF a SKIP LOCKED
)
UPDATE agent a
SET state = 'DEAD', ended_at = clock_timestamp(), ended_reason = 'its lease ran out'
FROM suspect
WHERE a.id = suspect.id AND a.state IN ('ACTIVE', 'STOPPING') AND a.lease_until < clock_timestamp()
RETURNING a.id
