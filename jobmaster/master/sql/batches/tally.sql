-- tally: an agent has ended jobs of batches; a hint and no count, for it may be sent twice
-- in: $1 uuid agent
-- in: $2 uuid[] lowest ids of the ranges
-- in: $3 bigint[] numbers of jobs
-- out: written bigint
-- move: nothing
-- fence: none: each agent has rows of its own, so no agent waits for another one
-- index: batch_tally_pkey, as the arbiter; batch_range_pkey
WITH written AS (
    INSERT INTO batch_tally AS t (lo, agent_id, ended)
    SELECT n.lo, $1::uuid, n.ended FROM unnest($2::uuid[], $3::bigint[]) AS n (lo, ended)
    WHERE EXISTS (SELECT FROM batch_range r JOIN batch b ON b.id = r.batch WHERE r.lo = n.lo AND b.look_at IS NOT NULL)
    ORDER BY n.lo
    ON CONFLICT (lo, agent_id) DO UPDATE SET ended = t.ended + EXCLUDED.ended, at = clock_timestamp()
    RETURNING 1
)
SELECT count(*) AS written FROM written
