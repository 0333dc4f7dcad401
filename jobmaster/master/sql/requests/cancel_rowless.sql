-- cancel_rowless: a job without a row is cancelled by a row that refuses its later writes
-- in: $1 uuid job
-- in: $2 smallint priority
-- in: $3 text lane
-- in: $4 text handler
-- in: $5 bytea args
-- in: $6 bytea headers
-- in: $7 bigint due time in microseconds since 1970, 0 = at once
-- in: $8 text the actor
-- out: state text
-- move: none -> CANCELLED
-- fence: the primary key: when a row came first, nothing happens and the caller cancels that row. No bucket on the row, so every
--        identity that comes later is another one.
-- index: job_pkey, as the arbiter
WITH made AS (
    INSERT INTO job (id, state, priority, lane, handler, token, cancel_requested, due_at, args, headers)
    VALUES ($1::uuid, 'CANCELLED', $2::smallint, $3::text, $4::text, 1, true, from_us(nullif($7::bigint, 0)), $5::bytea,
            $6::bytea)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, state
), logged AS (
    INSERT INTO operator_log (actor, action, subject) SELECT $8::text, 'job cancel', id::text FROM made
), noted AS (
    INSERT INTO batch_note (lo) SELECT batch_range_of(id) FROM made WHERE position('"batch":true'::bytea IN $6) > 0
)
SELECT state::text AS state FROM made
