-- read_keys: idempotency keys in the order of their primary key, for another cluster
-- in: $1 text scope of the last one
-- in: $2 text key of the last one
-- in: $3 integer limit
-- out: rows_text text (JSON array), last_scope text, last_key text (NULL: these are all)
-- move: nothing
-- fence: none
-- index: idempotency_pkey
WITH page AS (
    SELECT * FROM idempotency WHERE (scope, key) > ($1::text, $2::text) ORDER BY scope, key LIMIT $3::integer
), last AS (
    SELECT scope, key FROM page ORDER BY scope DESC, key DESC LIMIT 1
)
SELECT coalesce((SELECT jsonb_agg(to_jsonb(p)) FROM page p), '[]')::text AS rows_text,
       (SELECT scope FROM last) AS last_scope, (SELECT key FROM last) AS last_key
