-- in_portions: the rows of a scan, with pauses of the server, so that it works for moments only; the scan replaces SELECT id FROM job
-- in: $1 double precision mean number of rows between two pauses
-- in: $2 double precision seconds of a pause
-- in: $3 bigint key of an advisory lock: no pauses while another session holds it, nor on a standby; null: there always are
-- out: id uuid (of the scan: its own columns)
-- move: nothing
-- fence: none, it reads; it holds the lock for the moment in which it looks
-- index: none
-- OFFSET keeps the condition away from the rows that the scan leaves out. CASE keeps the order of its calls.
SELECT scanned.*
FROM (SELECT id FROM job OFFSET 0) AS scanned
WHERE random() >= 1 / $1::double precision
   OR CASE WHEN $3::bigint IS NULL THEN pg_sleep($2::double precision) IS NOT NULL
           WHEN pg_is_in_recovery() THEN true
           WHEN NOT pg_try_advisory_lock_shared($3::bigint) THEN true
           WHEN pg_advisory_unlock_shared($3::bigint) THEN pg_sleep($2::double precision) IS NOT NULL
           ELSE true
      END
