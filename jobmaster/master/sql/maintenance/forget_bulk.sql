-- forget_bulk: bulk operations that ended long ago
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: an operation that has ended never changes
-- index: bulk_operation_pkey, in order up to the limit; the table is small
WITH gone AS (
    DELETE FROM bulk_operation WHERE id IN (
        SELECT id FROM bulk_operation WHERE ended_at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
        ORDER BY id LIMIT $2::integer
    )
    RETURNING id
)
SELECT count(*) AS forgotten FROM gone
