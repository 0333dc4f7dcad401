-- mark_refused: writes that came too late leave a trace on the line of their identity
-- in: $1 uuid[] jobs
-- in: $2 integer[] tokens
-- in: $3 uuid[] buckets
-- in: $4 bigint[] bucket epochs
-- out: nothing
-- move: nothing
-- fence: the primary key of attempt is the full identity
-- index: attempt_pkey, as the arbiter
INSERT INTO attempt AS a (job_id, token, bucket_id, bucket_epoch, outcome, refused_at, refused_count)
SELECT id, token, bucket_id, bucket_epoch, 'refused', clock_timestamp(), 1
FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bigint[]) AS late (id, token, bucket_id, bucket_epoch)
ORDER BY id, token
ON CONFLICT (job_id, token, bucket_id, bucket_epoch) DO UPDATE
SET refused_at = clock_timestamp(), refused_count = a.refused_count + 1,
    -- The line was recorded before; a number ahead of every transaction fills in the bits that xmin lacks.
    recorded_xid = coalesce(a.recorded_xid, pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824
        - ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1073741824 - a.xmin::text::bigint) & 4294967295))
