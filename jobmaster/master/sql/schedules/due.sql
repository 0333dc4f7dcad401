-- due: schedules whose next fire is to be decided
-- in: $1 integer limit
-- out: name text, definition bytea, next_us bigint, decide_us bigint, revision bigint, now_us bigint
-- move: nothing
-- fence: none; schedules/fire compares what is read here
-- index: schedule_decide, read in order up to the limit
SELECT name, definition, to_us(next_fire) AS next_us, to_us(decide_at) AS decide_us, revision, to_us(clock_timestamp()) AS now_us
FROM schedule
WHERE decide_at <= statement_timestamp()
ORDER BY decide_at
LIMIT $1::integer
