-- take_room: takes room for some due jobs of a lane and priority, below the backlog that a run may make
-- in: $1 text run id
-- in: $2 text lane
-- in: $3 smallint priority
-- in: $4 bigint jobs
-- in: $5 double precision seconds for which a count of the backlog is valid
-- out: room bigint that is left; below 0 after a chunk that was larger than the room (no row: there is none, or the count is too old)
-- move: nothing
-- fence: the row's lock: two tasks do not take the same room
-- index: pipeline_brake_pkey
UPDATE pipeline_brake
SET room = room - $4::bigint
WHERE run_id = $1::text AND lane = $2::text AND priority = $3::smallint AND NOT held_back AND room > 0
  AND measured_at > clock_timestamp() - make_interval(secs => $5::double precision)
RETURNING room
