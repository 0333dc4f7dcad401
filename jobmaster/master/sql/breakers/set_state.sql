-- set_state: an operator opens or closes a breaker
-- in: $1 text name
-- in: $2 text state, OPEN or CLOSED
-- in: $3 double precision seconds until an open one becomes half-open, NULL = it stays open until it is closed
-- in: $4 text the actor
-- in: $5 text reason
-- in: $6 bigint the epoch that the operator has seen, NULL = whatever it is
-- out: version bigint (of the pauses; no row: there is no such breaker, or its epoch is another one)
-- move: nothing
-- fence: the one row of pause_version, locked before the breaker. The epoch grows, so what was evaluated before does not count.
--        With $6 compare-and-set: what the breaker has become since the operator looked stays
-- index: breaker_pkey, pause_version_pkey
WITH known AS MATERIALIZED (
    SELECT name FROM breaker WHERE name = $1::text AND ($6::bigint IS NULL OR epoch = $6)
), versioned AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp()))
    WHERE EXISTS (SELECT FROM known)
    RETURNING v.version
), changed AS (
    UPDATE breaker b
    SET state = $2::text, epoch = greatest(b.epoch + 1, to_us(clock_timestamp())), actor = $4::text, reason = $5::text,
        until = CASE WHEN $2 = 'OPEN' THEN clock_timestamp() + make_interval(secs => $3::double precision) END,
        changed_at = clock_timestamp()
    FROM versioned v
    WHERE b.name = $1 AND ($6 IS NULL OR b.epoch = $6)
    RETURNING b.name, v.version
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $4, CASE WHEN $2 = 'OPEN' THEN 'breaker_open' ELSE 'breaker_close' END, $1,
           jsonb_build_object('reason', $5, 'seconds', $3)
    FROM changed
)
SELECT version FROM changed
