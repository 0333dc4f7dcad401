-- take_place: a place among the connections that a run may have at once; it is free again when the session ends
-- in: $1 text run id
-- in: $2 integer places
-- out: place integer (no row: none is free)
-- move: nothing
-- fence: advisory lock of the session
-- index: none
SELECT place
FROM generate_series(1, $2::integer) AS place
WHERE pg_try_advisory_lock(hashtext('jobmaster write ' || current_schema() || ' ' || $1::text), place)
LIMIT 1
