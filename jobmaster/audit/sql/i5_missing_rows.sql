-- I5, the master's half: those of the acknowledged ids that have no row.
-- in:    $1 ids (at most a few thousand a call), $2 the lowest and $3 the highest of them, for pruning
-- out:   id
-- why:   what has no row must be found in a store, or is lost. Ids below the watermark have been archived and dropped.
-- index: primary key of job.
SELECT acknowledged.id
FROM unnest($1::uuid[]) AS acknowledged (id)
WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.id = acknowledged.id AND j.id BETWEEN $2::uuid AND $3::uuid)
  AND acknowledged.id >= COALESCE((SELECT floor FROM watermark), '00000000-0000-0000-0000-000000000000'::uuid)
