-- forget_schedule_fires: lines of fires past their retention, then retired schedules without lines
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: SKIP LOCKED. A line that lies ahead is younger than any retention. The newest decided line of a schedule stays: a fire
--        of its nominal time could otherwise be decided again. A manual or a withdrawn line is not decided by the recurrence.
-- index: schedule_fire_at, oldest first; schedule_fire_pkey
WITH old AS MATERIALIZED (
    SELECT f.schedule, f.nominal FROM schedule_fire f
    WHERE f.at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
      AND (f.manual
           OR EXISTS (SELECT FROM schedule_fire newer
                      WHERE newer.schedule = f.schedule AND newer.nominal > f.nominal
                        AND NOT newer.manual AND newer.outcome <> 'withdrawn')
           OR NOT EXISTS (SELECT FROM schedule s WHERE s.name = f.schedule AND s.retired_at IS NULL))
    ORDER BY f.at
    LIMIT $2::integer
    FOR UPDATE OF f SKIP LOCKED
), gone AS (
    DELETE FROM schedule_fire f USING old WHERE f.schedule = old.schedule AND f.nominal = old.nominal RETURNING f.schedule
), ended AS (
    DELETE FROM schedule s
    WHERE s.retired_at < clock_timestamp() - make_interval(secs => $1 * 86400)
      AND NOT EXISTS (SELECT FROM schedule_fire f WHERE f.schedule = s.name)
    RETURNING s.name
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM ended) AS forgotten
