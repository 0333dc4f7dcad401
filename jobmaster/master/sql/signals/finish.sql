-- finish: the next portion of a signal whose sender has not come back
-- in: $1 double precision seconds since it was sent
-- in: $2 integer most jobs of the portion
-- out: delivered bigint (in all), finished boolean (no row: there is none)
-- move: WAITING -> HELD
-- fence: as send, which a sender that does come back may call at the same time: the lock of the key, and the signal's row. A key
--        whose lock is held (by an open transaction of an application, for as long as that lasts) is left for later. That is only
--        tried here, and the lock is given back: send_signal locks jobs before the key.
-- index: signal_unfinished; then as send
SELECT f.delivered, f.finished
FROM (
    SELECT s.* FROM signal s
    WHERE NOT s.finished AND s.sent_at <= statement_timestamp() - make_interval(secs => $1::double precision)
      AND CASE WHEN pg_try_advisory_lock(signal_lock(signal_key_form(s.key)))
               THEN pg_advisory_unlock(signal_lock(signal_key_form(s.key))) END
    ORDER BY s.sent_at
    LIMIT 1
) AS open, LATERAL send_signal(open.id, open.key, open.payload, open.recipients, 0, 0, open.actor, $2::integer) AS f
