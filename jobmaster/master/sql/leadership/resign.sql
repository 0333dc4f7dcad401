-- resign: give the leader's lease back at once
-- in: $1 uuid agent
-- in: $2 bigint epoch
-- out: nothing
-- move: nothing
-- fence: compare-and-set on owner and epoch
-- index: lease_pkey
UPDATE lease SET owner = NULL, expires_at = clock_timestamp()
WHERE name = 'leader' AND owner = $1::uuid AND epoch = $2::bigint
