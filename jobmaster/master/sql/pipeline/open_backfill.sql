-- open_backfill: a backfill of that name, from now on or from long ago, with the present call
-- in: $1 text name
-- in: $2 text request, JSON; NULL: the earlier one stays
-- out: paused_us bigint (microseconds since 1970, NULL: it is not paused), paused_by text
-- move: nothing
-- fence: the primary key
-- index: pipeline_backfill_pkey
INSERT INTO pipeline_backfill AS backfill (name, request) VALUES ($1::text, $2::text)
ON CONFLICT (name) DO UPDATE SET request = coalesce(excluded.request, backfill.request)
RETURNING to_us(paused_at) AS paused_us, paused_by
