-- due: schedules whose next fire is to be decided; what is late by more than the given time comes last
-- in: $1 integer limit
-- in: $2 double precision seconds after which a decision is late
-- out: name text, definition bytea, next_us bigint, decide_us bigint, revision bigint, now_us bigint
-- move: nothing
-- fence: none; schedules/fire compares what is read here
-- index: schedule_decide, twice, each time read in order up to the limit: after an outage the fires of the present do not wait
--        for those of the past
WITH recent AS MATERIALIZED (
    SELECT name, definition, next_fire, decide_at, revision FROM schedule
    WHERE decide_at <= statement_timestamp()
      AND decide_at > statement_timestamp() - make_interval(secs => $2::double precision)
    ORDER BY decide_at
    LIMIT $1::integer
), late AS MATERIALIZED (
    SELECT name, definition, next_fire, decide_at, revision FROM schedule
    WHERE decide_at <= statement_timestamp() - make_interval(secs => $2)
    ORDER BY decide_at
    LIMIT $1
)
SELECT name, definition, to_us(next_fire) AS next_us, to_us(decide_at) AS decide_us, revision, to_us(clock_timestamp()) AS now_us
FROM (SELECT 1 AS part, r.* FROM recent r UNION ALL SELECT 2, l.* FROM late l) due
ORDER BY part, decide_at
LIMIT $1
