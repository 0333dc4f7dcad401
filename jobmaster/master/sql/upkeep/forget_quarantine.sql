-- forget_quarantine: refused entries that nobody has looked at for long
-- in: $1 double precision age, days
-- in: $2 integer limit
-- out: forgotten bigint
-- move: nothing
-- fence: none; the oldest first
-- index: quarantine_pkey, in order
WITH gone AS (
    DELETE FROM quarantine
    WHERE seq IN (SELECT seq FROM quarantine ORDER BY seq LIMIT $2::integer FOR UPDATE SKIP LOCKED)
      AND at < clock_timestamp() - make_interval(secs => $1::double precision * 86400)
    RETURNING seq
)
SELECT count(*) AS forgotten FROM gone
