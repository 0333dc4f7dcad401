-- read_young_keys: idempotency keys and unique keys that were reserved in the last seconds, for another cluster
-- in: $1 double precision seconds
-- out: keys text, unique_keys text (JSON arrays)
-- move: nothing
-- fence: none; a key is reserved before its job has a row, or with it
-- index: idempotency_age, unique_key_held_at
SELECT coalesce((SELECT jsonb_agg(to_jsonb(k)) FROM idempotency k
                 WHERE k.created_at > clock_timestamp() - make_interval(secs => $1::double precision)), '[]')::text AS keys,
       coalesce((SELECT jsonb_agg(to_jsonb(u)) FROM unique_key u
                 WHERE u.held_at > clock_timestamp() - make_interval(secs => $1)), '[]')::text AS unique_keys
