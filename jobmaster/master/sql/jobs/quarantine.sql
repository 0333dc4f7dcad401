-- quarantine: entries whose id lies below the floor or outside every partition are kept for a person to look at
-- in: $1 uuid[] ids
-- in: $2 uuid bucket they came from, or NULL
-- in: $3 text reason
-- in: $4 bytea[] entries (MessagePack)
-- out: nothing
-- move: nothing
-- fence: unique (job, reason): a batch that is sent again adds nothing
-- index: quarantine_job_id_reason_key, as the arbiter
INSERT INTO quarantine (job_id, bucket_id, reason, entry)
SELECT id, $2::uuid, $3::text, entry
FROM unnest($1::uuid[], $4::bytea[]) AS new (id, entry)
ORDER BY id
ON CONFLICT (job_id, reason) DO NOTHING
