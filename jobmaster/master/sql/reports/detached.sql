-- detached: tables named like a partition that are neither attached nor left to the archive
-- in: $1 text name of the partitioned table
-- out: name text, attach text (the statements that attach it again, with the range that its name stands for)
-- move: nothing
-- fence: none
-- index: the catalogue
SELECT t.name, format(
           'SET search_path TO %I; ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', current_schema(), $1, t.name,
           uuid_floor(t.day), uuid_floor(date_trunc(t.span, t.day, 'UTC') + ('1 ' || t.span)::interval)) AS attach
FROM (
    SELECT c.relname::text AS name, c.oid, split_part(c.relname, '_', 2) AS span,
           to_timestamp(split_part(c.relname, '_', 3) || ' UTC', 'YYYYMMDD') AS day
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
      AND c.relname ~ ('^' || $1::text || '_(day|week|month)_[0-9]{8}$')
) t
WHERE NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = t.oid)
  AND NOT EXISTS (SELECT FROM archive_manifest m WHERE t.name IN (m.name, m.attempts))
ORDER BY t.name
