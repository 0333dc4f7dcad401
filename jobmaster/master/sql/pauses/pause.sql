-- pause: an operator pauses a handler, a lane, a priority or a tag, or changes such a pause
-- in: $1 text kind
-- in: $2 text value
-- in: $3 bigint end, microseconds since 1970, NULL = none, or $4
-- in: $4 double precision seconds until the end, NULL = none, or $3
-- in: $5 text the actor
-- in: $6 text reason
-- out: version bigint, until_us bigint, at_us bigint (no row: the end is not in the future, and nothing is written)
-- move: nothing
-- fence: the one row of pause_version, locked first: versions grow in the order of the commits, and a reader that sees a
--        version sees the lines of all versions up to it. Pauses that are over are deleted on the way.
-- index: pause_version_pkey, pause_pkey; both tables are small
WITH requested AS MATERIALIZED (
    SELECT now, coalesce(from_us($3::bigint), now + make_interval(secs => $4::double precision)) AS until
    FROM (SELECT clock_timestamp() AS now) AS clock
), changed AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp()))
    FROM requested r
    WHERE r.until IS NULL OR r.until > r.now
    RETURNING v.version, r.until, r.now
), over AS (
    DELETE FROM pause p USING changed c WHERE p.until <= c.now AND (p.kind, p.value) <> ($1::text, $2::text)
), written AS (
    INSERT INTO pause AS p (kind, value, until, actor, reason, at)
    SELECT $1, $2, until, $5::text, $6::text, now FROM changed
    ON CONFLICT (kind, value) DO UPDATE
    SET until = excluded.until, actor = excluded.actor, reason = excluded.reason,
        at = CASE WHEN p.until <= excluded.at THEN excluded.at ELSE p.at END
    RETURNING p.at
), logged AS (
    INSERT INTO operator_log (actor, action, subject, detail)
    SELECT $5, 'pause', $1 || ' ' || $2, jsonb_build_object('reason', $6, 'until', until) FROM changed
)
SELECT changed.version, to_us(changed.until) AS until_us, to_us(written.at) AS at_us FROM changed, written
