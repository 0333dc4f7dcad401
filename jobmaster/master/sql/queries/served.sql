-- served: who can run what, where owners of buckets differ in that
-- in: nothing
-- out: id uuid, handlers text[]
-- move: nothing
-- fence: none: a preference of producers, nothing depends on it
-- index: bucket_owner; the tables are small
WITH owners AS MATERIALIZED (
    SELECT a.id, a.handlers FROM agent a
    WHERE a.state = 'ACTIVE' AND EXISTS (SELECT FROM bucket b WHERE b.owner = a.id AND b.state = 'ACTIVE')
)
SELECT id, handlers FROM owners WHERE (SELECT count(DISTINCT handlers) FROM owners) > 1
