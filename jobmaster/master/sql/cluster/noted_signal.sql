-- noted_signal: the oldest signal that is on its way to another cluster
-- in: nothing
-- out: id uuid, key text, recipients text, payload bytea, actor text, sent_at timestamptz, keep_seconds double precision (no row: none is)
-- move: nothing
-- fence: none; the mover alone takes lines away
-- index: passed_signal_pkey
SELECT id, key, recipients, payload, actor, sent_at,
       greatest(extract(epoch FROM kept_until - clock_timestamp()), 0)::double precision AS keep_seconds
FROM passed_signal
ORDER BY sent_at, id
LIMIT 1
