-- list: schedules in the order of their names
-- in: $1 text[] names, NULL = all
-- in: $2 text tag, NULL = any
-- in: $3 boolean retired ones, too
-- in: $4 text name after which the page begins
-- in: $5 integer limit
-- out: definition bytea, args bytea, source text, declared_us bigint, revision bigint, next_us bigint, paused_us bigint,
--      paused_by text, paused_reason text, retired_us bigint, retired_reason text, now_us bigint
-- move: nothing
-- fence: none
-- index: schedule_pkey, in order
SELECT definition, args, source, to_us(declared_at) AS declared_us, revision, to_us(next_fire) AS next_us,
       to_us(paused_at) AS paused_us, paused_by, paused_reason, to_us(retired_at) AS retired_us, retired_reason,
       to_us(clock_timestamp()) AS now_us
FROM schedule
WHERE ($1::text[] IS NULL OR name = ANY ($1)) AND ($2::text IS NULL OR $2 = ANY (tags))
  AND ($3::boolean OR retired_at IS NULL) AND name > $4::text
ORDER BY name
LIMIT $5::integer
