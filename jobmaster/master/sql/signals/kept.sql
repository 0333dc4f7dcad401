-- kept: signals that are kept for jobs to come, the oldest first
-- in: $1 text key, NULL = all
-- in: $2 integer limit
-- out: id uuid, key text, recipients text, payload bytea, actor text, sent_at timestamptz, kept_until timestamptz, delivered bigint
-- move: nothing
-- fence: none
-- index: signal_kept for a key, signal_kept_until for all
SELECT id, key, recipients, payload, actor, sent_at, kept_until, delivered
FROM signal
WHERE kept_until IS NOT NULL AND kept_until > clock_timestamp() AND ($1::text IS NULL OR key = $1)
ORDER BY sent_at
LIMIT $2::integer
