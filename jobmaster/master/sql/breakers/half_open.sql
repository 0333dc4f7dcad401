-- half_open: open breakers whose time is over become half-open
-- in: nothing
-- out: name text, state text, reason text, version bigint (of the pauses)
-- move: nothing
-- fence: compare-and-set on the state and the epoch, by the database's clock: no leader's clock counts, and of two leaders one
--        changes it. pause_version is locked first. Trials of an earlier epoch are deleted
-- index: breaker_pkey; the table is small
WITH over AS MATERIALIZED (
    SELECT name, epoch FROM breaker WHERE state = 'OPEN' AND until <= clock_timestamp()
), versioned AS (
    UPDATE pause_version v SET version = greatest(v.version + 1, to_us(clock_timestamp()))
    WHERE EXISTS (SELECT FROM over)
    RETURNING v.version
), old AS (
    DELETE FROM breaker_trial t USING over WHERE t.breaker = over.name
)
UPDATE breaker b
SET state = 'HALF_OPEN', epoch = greatest(b.epoch + 1, to_us(clock_timestamp())), until = NULL, actor = 'breaker',
    reason = 'it was open for its time', changed_at = clock_timestamp()
FROM over, versioned v
WHERE b.name = over.name AND b.epoch = over.epoch AND b.state = 'OPEN'
RETURNING b.name, b.state, b.reason, v.version
