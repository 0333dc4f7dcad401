-- paused_schedules: schedules that a person has paused
-- out: name text, since_us bigint, actor text, reason text
-- move: nothing
-- fence: none
-- index: none: the table of schedules is small
SELECT name, (extract(epoch FROM paused_at) * 1000000)::bigint AS since_us, paused_by AS actor, paused_reason AS reason
FROM schedule
WHERE paused_at IS NOT NULL AND retired_at IS NULL
ORDER BY name
