-- take_notes: the leader adds to its tallies the jobs of batches that no agent has ended
-- in: $1 uuid agent
-- in: $2 integer limit
-- out: lo uuid, jobs bigint (that have ended in this range)
-- move: nothing
-- fence: none: what a tally says is a hint. A note is taken once, also by two leaders.
-- index: batch_note_lo in order up to the limit; batch_tally_pkey, as the arbiter; batch_range_pkey
WITH taken AS (
    DELETE FROM batch_note
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM batch_note ORDER BY lo LIMIT $2::integer FOR UPDATE SKIP LOCKED))
    RETURNING lo
), ended AS MATERIALIZED (
    SELECT lo, count(*) AS jobs FROM taken GROUP BY lo
), written AS (
    INSERT INTO batch_tally AS t (lo, agent_id, ended)
    SELECT e.lo, $1::uuid, e.jobs FROM ended e
    WHERE EXISTS (SELECT FROM batch_range r JOIN batch b ON b.id = r.batch WHERE r.lo = e.lo AND b.look_at IS NOT NULL)
    ORDER BY e.lo
    ON CONFLICT (lo, agent_id) DO UPDATE SET ended = t.ended + EXCLUDED.ended, at = clock_timestamp()
)
SELECT lo, jobs FROM ended ORDER BY lo
