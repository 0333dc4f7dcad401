-- quarantine: entries that no table takes, for their id or for a value, are kept for an operator
-- in: $1 uuid[] ids
-- in: $2 uuid bucket they came from, or NULL
-- in: $3 text[] reasons
-- in: $4 bytea[] entries (MessagePack, or what lay in the store)
-- out: nothing
-- move: nothing
-- fence: unique (job, reason): a batch that is sent again adds nothing. Each of them counts as a failed job of its batch, if it has one.
-- index: quarantine_job_id_reason_key, as the arbiter
WITH kept AS (
    INSERT INTO quarantine (job_id, bucket_id, reason, entry)
    SELECT id, $2::uuid, reason, entry
    FROM unnest($1::uuid[], $3::text[], $4::bytea[]) AS new (id, reason, entry)
    ORDER BY id
    ON CONFLICT (job_id, reason) DO NOTHING
    RETURNING job_id
)
INSERT INTO batch_note (lo) SELECT batch_range_of(job_id) FROM kept ORDER BY job_id
