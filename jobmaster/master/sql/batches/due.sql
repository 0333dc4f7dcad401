-- due: batches that the leader looks at now, and what it knows of them without a count
-- in: $1 integer limit
-- in: $2 double precision seconds after a loss of a store without an end of a job
-- out: batch uuid, state text, cancel_requested boolean, abandoned boolean, expired boolean, quiet_seconds double precision
--      (since a job of it has ended, by the tallies), lost boolean, inner_left boolean (it is cancelled, and a batch inside it
--      is not)
-- move: nothing
-- fence: none; batches/conclude compares what is read here
-- index: batch_look in order up to the limit; batch_range_batch, batch_tally_pkey, batch_parent; store_loss is small
SELECT b.id AS batch, b.state, b.cancel_requested,
       b.state = 'OPEN' AND b.silent_after < statement_timestamp() AS abandoned,
       coalesce(b.expires_at < statement_timestamp(), false) AS expired,
       extract(epoch FROM statement_timestamp() - m.at)::double precision AS quiet_seconds,
       b.state = 'CLOSED' AND m.at < statement_timestamp() - make_interval(secs => $2::double precision)
       AND EXISTS (SELECT FROM store_loss l WHERE l.at > b.created_at AND l.at_risk > 0) AS lost,
       b.cancel_requested
       AND EXISTS (SELECT FROM batch n WHERE n.parent = b.id AND n.look_at IS NOT NULL AND NOT n.cancel_requested) AS inner_left
FROM (SELECT * FROM batch WHERE look_at <= statement_timestamp() ORDER BY look_at LIMIT $1::integer) b
CROSS JOIN LATERAL (
    SELECT greatest(b.created_at, b.closed_at, max(t.at)) AS at
    FROM batch_range r LEFT JOIN batch_tally t ON t.lo = r.lo WHERE r.batch = b.id
) m
ORDER BY b.look_at
