-- forget_signals: rows of signals that are not kept, and that no sender repeats any more
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: a signal that was delivered whole and is not kept, sent so long ago by this server's clock
-- index: signal_sent, in order
-- The batch is materialised: a sub-select with a limit under IN is run again by some plans, and each time skips what it locked.
WITH old AS MATERIALIZED (
    SELECT s.id FROM signal s
    WHERE s.sent_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400) AND s.finished AND s.kept_until IS NULL
    ORDER BY s.sent_at
    LIMIT $2::integer
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM signal s USING old WHERE s.id = old.id RETURNING s.id
)
SELECT count(*) AS forgotten FROM gone
