-- ordered_before: the first job of an ordering key that keeps another one from starting
-- in: $1 text ordering key
-- in: $2 uuid the other job
-- out: id uuid, state text
-- move: nothing
-- fence: none
-- index: job_of_ordering_key
SELECT id, state::text AS state
FROM job
WHERE position('],"ordering_key":"'::bytea IN headers) > 0
  AND ordering_key(headers) = signal_key_form($1::text)
  AND state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING')
  AND (id < $2::uuid OR id > $2 AND state = 'PROCESSING')
ORDER BY id
LIMIT 1
