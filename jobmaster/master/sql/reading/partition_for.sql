-- partition_for: is there a partition for the jobs of a day to come, and which
-- in: $1 int days from now
-- out: id uuid
-- move: nothing
-- fence: none
-- index: none
SELECT uuid_floor(clock_timestamp() + make_interval(days => $1::int)) AS id
