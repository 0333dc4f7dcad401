-- submit: jobs under unique keys, each by the function submit_unique
-- in: $1 text[] handlers
-- in: $2 text[] keys
-- in: $3 uuid[] ids
-- in: $4 smallint[] priorities
-- in: $5 text[] lanes
-- in: $6 bytea[] args (JSON objects)
-- in: $7 bytea[] headers (JSON objects)
-- in: $8 bigint[] due times in microseconds since 1970, 0 = now
-- in: $9 text[] terms: window, live or waiting
-- in: $10 bigint[] microseconds: length of the window, or the most that a due time is moved; 0 = none
-- in: $11 boolean[] windows begin at multiples of their length
-- in: $12 text[] on conflict: existing, reject, replace or debounce
-- in: $13 uuid[] holders that have started, or NULL
-- in: $14 boolean holders can be taken out of buckets
-- out: own uuid, answer text, job_id uuid, holder uuid, limit_us bigint
-- move: none -> HELD
-- move: HELD -> HELD
-- move: HELD|WAITING -> CANCELLED
-- fence: the row of the key, locked before the row of its holder is read by a statement of its own; the keys are locked in their
--        order, and then the holders that may change in that of their ids, as every statement locks jobs. An id that has a row is
--        left alone. A window ends by this server's clock.
-- index: unique_key_pkey; job_pkey, one partition for each id
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::smallint[], $5::text[], $6::bytea[], $7::bytea[], $8::bigint[],
                         $9::text[], $10::bigint[], $11::boolean[], $12::text[], $13::uuid[])
         AS one (handler, key, id, priority, lane, args, headers, due_us, term, span_us, aligned, on_conflict, passed)
), keys AS MATERIALIZED (
    SELECT u.handler, u.key, u.job_id FROM @schema.unique_key u
    WHERE (u.handler, u.key) IN (SELECT handler, key FROM input)
    ORDER BY u.handler, u.key
    FOR UPDATE
), holders AS MATERIALIZED (
    SELECT j.id FROM @schema.job j
    WHERE j.id IN (SELECT k.job_id FROM keys k JOIN input i ON i.handler = k.handler AND i.key = k.key
                   WHERE i.on_conflict IN ('replace', 'debounce'))
    ORDER BY j.id
    FOR UPDATE
)
SELECT new.id AS own, done.answer, done.job_id, done.holder, done.limit_us
FROM (
    SELECT * FROM input WHERE (SELECT count(*) FROM holders) >= 0  -- they are locked before the first row
    ORDER BY handler, key, id
    OFFSET 0
) AS new, LATERAL @schema.submit_unique(
    new.handler, new.key, new.id, new.priority, new.lane, new.args, new.headers, new.due_us, new.term, new.span_us, new.aligned,
    new.on_conflict, new.passed, $14::boolean
) AS done
