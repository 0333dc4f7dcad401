-- list: bulk operations, the newest first
-- in: $1 uuid the one that is wanted, NULL = all
-- in: $2 text[] states, empty = all
-- in: $3 uuid only those before this one, NULL = from the newest
-- in: $4 integer limit
-- out: id uuid, kind text, state text, filter json, change json, lowest uuid, highest uuid, cursor uuid, actor text, reason text,
--      changed bigint, skipped json, unsearched integer, error text, created_us bigint, started_us bigint, moved_us bigint, ended_us bigint
-- move: nothing
-- fence: none
-- index: bulk_operation_pkey, backwards
SELECT id, kind, state::text AS state, filter::json AS filter, change::json AS change, lowest, highest, cursor, actor, reason,
       changed, skipped::json AS skipped, unsearched, error, to_us(created_at) AS created_us, to_us(started_at) AS started_us,
       to_us(moved_at) AS moved_us, to_us(ended_at) AS ended_us
FROM bulk_operation
WHERE ($1::uuid IS NULL OR id = $1) AND ($3::uuid IS NULL OR id < $3)
  AND (cardinality($2::text[]) = 0 OR state = ANY ($2::text[]::bulk_state[]))
ORDER BY id DESC
LIMIT $4::integer
