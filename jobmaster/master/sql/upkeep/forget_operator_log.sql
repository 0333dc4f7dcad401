-- forget_operator_log: acts of operators, long ago
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: none; the oldest first
-- index: operator_log_pkey, in order
WITH gone AS (
    DELETE FROM operator_log
    WHERE seq IN (SELECT seq FROM operator_log ORDER BY seq LIMIT $2::integer FOR UPDATE SKIP LOCKED)
      AND at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
    RETURNING seq
)
SELECT count(*) AS forgotten FROM gone
