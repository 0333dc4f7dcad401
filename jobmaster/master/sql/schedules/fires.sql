-- fires: the newest lines of a schedule
-- in: $1 text schedule
-- in: $2 integer limit
-- out: schedule text, nominal_us bigint, outcome text, job_id uuid, at_us bigint, through_us bigint, manual boolean
-- move: nothing
-- fence: none
-- index: schedule_fire_pkey, backwards
SELECT schedule, to_us(nominal) AS nominal_us, outcome, job_id, to_us(at) AS at_us, to_us(through) AS through_us, manual
FROM schedule_fire
WHERE schedule = $1::text
ORDER BY nominal DESC
LIMIT $2::integer
