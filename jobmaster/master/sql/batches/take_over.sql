-- take_over: the batch of a key; it gets another producer, if it is OPEN and its producer has given no sign for a while
-- in: $1 text key
-- in: $2 uuid the producer
-- in: $3 double precision seconds without a sign of the last producer
-- in: $4 double precision seconds without a further sign after which the batch counts as abandoned
-- out: id uuid, state text, cancel_requested boolean, taken boolean, settled bigint, stored bigint, reserved bigint,
--      ranges uuid[], firsts bigint[] (no row: there is none)
-- move: nothing
-- fence: compare-and-set on the last sign. What is read beside it is as old as the statement's snapshot: a producer that gave a
--        sign since then has changed the sign, too, and keeps the batch.
-- index: batch_key, batch_range_batch
WITH taken AS (
    UPDATE batch
    SET producer = $2::uuid, signed_at = clock_timestamp(),
        silent_after = clock_timestamp() + make_interval(secs => $4::double precision)
    WHERE key = $1::text AND state = 'OPEN'
      AND (producer = $2 OR signed_at < clock_timestamp() - make_interval(secs => $3::double precision))
    RETURNING id
)
SELECT b.id, b.state, b.cancel_requested, EXISTS (SELECT FROM taken) AS taken, b.settled, b.stored, b.reserved,
       ARRAY (SELECT r.lo FROM batch_range r WHERE r.batch = b.id ORDER BY r.lo) AS ranges,
       ARRAY (SELECT r.first FROM batch_range r WHERE r.batch = b.id ORDER BY r.lo) AS firsts
FROM batch b
WHERE b.key = $1
