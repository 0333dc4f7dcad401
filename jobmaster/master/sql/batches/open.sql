-- open: a new batch with its first range and its callbacks; sent again, the same
-- in: $1 uuid batch
-- in: $2 uuid parent, or any range of it, NULL = none
-- in: $3 uuid batch whose failed jobs it runs again, NULL = none
-- in: $4 text name
-- in: $5 text description
-- in: $6 double precision seconds until it ends whatever its jobs do, NULL = none
-- in: $7 double precision seconds without a sign of its producer after which it counts as abandoned
-- in: $8 text[] occasions of the callbacks
-- in: $9 smallint[] their priorities
-- in: $10 text[] their lanes
-- in: $11 text[] their handlers
-- in: $12 bytea[] their args
-- in: $13 bytea[] their headers
-- in: $14 text its key, NULL = none
-- in: $15 uuid the producer of a batch with a key
-- out: id uuid (no row: it or its key exists, or its parent has ended or was cancelled)
-- move: nothing
-- fence: the primary key, and the unique key. The parent's row is written first, so a conclusion of the parent that has not counted this batch is
--        refused when it reads the row again.
-- index: batch_pkey, batch_key, batch_range_pkey
WITH within AS (
    UPDATE batch SET nested_changes = nested_changes + 1
    WHERE id = (SELECT batch FROM batch_range WHERE lo = $2::uuid) AND state IN ('OPEN', 'CLOSED')
      AND NOT cancel_requested
    RETURNING id
), opened AS (
    INSERT INTO batch (id, parent, retry_of, name, description, expires_at, silent_after, look_at, key, producer)
    SELECT $1::uuid, (SELECT id FROM within), $3::uuid, $4::text, $5::text, clock_timestamp() + make_interval(secs => $6::double precision),
           clock_timestamp() + make_interval(secs => $7::double precision),
           clock_timestamp() + least(interval '10 seconds', make_interval(secs => $6)), $14::text, $15::uuid
    WHERE $2 IS NULL OR EXISTS (SELECT FROM within)
    ON CONFLICT DO NOTHING
    RETURNING id
), ranged AS (
    INSERT INTO batch_range (lo, batch) SELECT id, id FROM opened
), followed AS (
    INSERT INTO batch_callback (batch, occasion, priority, lane, handler, args, headers)
    SELECT o.id, c.* FROM opened o
    CROSS JOIN unnest($8::text[], $9::smallint[], $10::text[], $11::text[], $12::bytea[], $13::bytea[])
         AS c (occasion, priority, lane, handler, args, headers)
)
SELECT id FROM opened
