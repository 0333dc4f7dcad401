-- note_signals: signals that are kept go to another cluster, and are kept here no more
-- in: nothing
-- out: noted bigint
-- move: nothing
-- fence: the rows: a job that takes one at this moment has taken it before, or finds it kept no more
-- index: signal_kept_until
WITH kept AS MATERIALIZED (
    SELECT * FROM signal WHERE kept_until > clock_timestamp() ORDER BY sent_at FOR UPDATE
), ended AS (
    UPDATE signal s SET kept_until = NULL FROM kept WHERE s.id = kept.id
), noted AS (
    INSERT INTO passed_signal (sent_at, id, key, recipients, payload, actor, kept_until)
    SELECT sent_at, id, key, recipients, payload, actor, kept_until FROM kept
    ON CONFLICT (sent_at, id) DO NOTHING
    RETURNING id
)
SELECT count(*) AS noted FROM noted
