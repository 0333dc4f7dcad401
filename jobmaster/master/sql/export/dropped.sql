-- dropped: ranges that were dropped since a stream began, with rows of transactions that it has not read
-- in: $1 bigint first transaction that the stream has not read
-- in: $2 bigint first transaction that had not ended when the stream began: ranges dropped before that are not its concern
-- in: $3 boolean whether it reads jobs; false: attempts
-- in: $4 uuid lowest job id that it reads
-- in: $5 uuid highest job id, itself outside
-- out: name text
-- move: nothing
-- fence: the caller has locked job and job_detached (block_retirement): a range that is not dropped by now stays until its transaction ends
-- index: none; one row a range
SELECT name
FROM archive_manifest
WHERE state = 'DROPPED' AND dropped_xid >= $2::bigint AND hi > $4::uuid AND lo < $5::uuid
  AND CASE WHEN $3::boolean THEN jobs_recorded ELSE attempts_recorded END >= $1::bigint
ORDER BY lo, name
