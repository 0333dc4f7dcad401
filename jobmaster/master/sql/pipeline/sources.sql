-- sources: the sources with remembered rows, and their numbers of rows
-- in: nothing
-- out: id integer, name text, created_at timestamptz, rows bigint
-- move: nothing
-- fence: none, it reads
-- index: none, it counts every key
SELECT s.id, s.name, s.created_at, (SELECT count(*) FROM pipeline_key WHERE source = s.id) AS rows
FROM pipeline_source s
ORDER BY s.name
