-- move: one step in a bucket's life by its present owner
-- in: $1 uuid bucket
-- in: $2 bigint epoch
-- in: $3 uuid owner
-- in: $4 text[] states it may come from
-- in: $5 text state it goes to
-- in: $6 text reason
-- out: moved boolean (also true when it stood there already), state text (NULL: the bucket is not this owner's)
-- move: ACTIVE|COMPLETING|FROZEN|DRAINING -> COMPLETING|LOST|READY_TO_DELETE
-- fence: compare-and-set on (id, epoch, owner, state)
-- index: bucket_pkey
WITH before AS MATERIALIZED (
    SELECT id, state FROM bucket WHERE id = $1::uuid AND epoch = $2::bigint AND owner = $3::uuid FOR UPDATE
), after AS (
    UPDATE bucket b SET state = $5::text::bucket_state, changed_at = clock_timestamp()
    FROM before
    WHERE b.id = before.id AND before.state = ANY ($4::text[]::bucket_state[])
    RETURNING b.id
), logged AS (
    INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, actor, reason)
    SELECT after.id, before.state, $5::text::bucket_state, $2, $3, $6::text FROM after, before
)
SELECT EXISTS (SELECT FROM after) OR EXISTS (SELECT FROM before WHERE state = $5::text::bucket_state) AS moved,
       (SELECT state::text FROM before) AS state
