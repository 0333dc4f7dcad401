-- due: batches that the leader looks at now, and what it knows of them without a count
-- in: $1 integer limit
-- in: $2 double precision seconds without an end of a job after which a batch is quiet
-- in: $3 double precision seconds after a loss of a store without an end of a job
-- out: batch uuid, state text, cancel_requested boolean, abandoned boolean, expired boolean, quiet boolean, lost boolean
-- move: nothing
-- fence: none; batches/conclude compares what is read here
-- index: batch_look in order up to the limit; batch_range_batch, batch_tally_pkey; store_loss is small
SELECT b.id AS batch, b.state, b.cancel_requested,
       b.state = 'OPEN' AND b.silent_after < statement_timestamp() AS abandoned,
       coalesce(b.expires_at < statement_timestamp(), false) AS expired,
       m.at < statement_timestamp() - make_interval(secs => $2::double precision) AS quiet,
       b.state = 'CLOSED' AND m.at < statement_timestamp() - make_interval(secs => $3::double precision)
       AND EXISTS (SELECT FROM store_loss l WHERE l.at > b.created_at AND l.at_risk > 0) AS lost
FROM (SELECT * FROM batch WHERE look_at <= statement_timestamp() ORDER BY look_at LIMIT $1::integer) b
CROSS JOIN LATERAL (
    SELECT greatest(b.created_at, b.closed_at, max(t.at)) AS at
    FROM batch_range r LEFT JOIN batch_tally t ON t.lo = r.lo WHERE r.batch = b.id
) m
ORDER BY b.look_at
