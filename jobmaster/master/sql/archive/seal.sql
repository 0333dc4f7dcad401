-- seal: chooses the oldest range to leave, if all of it is below a time
-- in: $1 timestamptz the time
-- out: name text (no row: the oldest range is younger, or is sealed already)
-- move: none -> SEALED
-- fence: the primary key of the manifest
-- index: none; catalogue
INSERT INTO archive_manifest (name, attempts, lo, hi)
SELECT j.name, a.name, j.lo, j.hi
FROM (SELECT name, lo, hi FROM partitions_of('job') WHERE lo IS NOT NULL ORDER BY lo LIMIT 1) j
JOIN partitions_of('attempt') a ON a.lo = j.lo
WHERE j.hi <= uuid_floor($1::timestamptz)
ON CONFLICT (name) DO NOTHING
RETURNING name
