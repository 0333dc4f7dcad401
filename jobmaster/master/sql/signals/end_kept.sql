-- end_kept: signals are not kept any longer
-- in: $1 integer limit
-- out: ended bigint
-- move: nothing
-- fence: FOR UPDATE SKIP LOCKED; a job that has taken the signal since has ended it, too
-- index: signal_kept_until
WITH old AS MATERIALIZED (
    SELECT id FROM signal WHERE kept_until IS NOT NULL AND kept_until <= statement_timestamp()
    ORDER BY kept_until LIMIT $1::integer
    FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE signal s SET kept_until = NULL FROM old WHERE s.id = old.id RETURNING s.id
)
SELECT count(*) AS ended FROM ended
