-- served: what owners of buckets can run, know, and what share of the jobs they take: each of them where they differ, else all in one row
-- in: nothing
-- out: id uuid (NULL: every owner), handlers text[], share double precision, capabilities text[]
-- move: nothing
-- fence: none: a preference of producers, nothing depends on it
-- index: bucket_owner; the tables are small
WITH owners AS MATERIALIZED (
    SELECT a.id, a.handlers, a.share, a.capabilities FROM agent a
    WHERE a.state = 'ACTIVE' AND EXISTS (SELECT FROM bucket b WHERE b.owner = a.id AND b.state = 'ACTIVE')
), kinds AS MATERIALIZED (
    SELECT DISTINCT handlers, share, capabilities FROM owners
)
SELECT id, handlers, share, capabilities FROM owners WHERE (SELECT count(*) FROM kinds) > 1
UNION ALL
SELECT NULL, handlers, share, capabilities FROM kinds WHERE (SELECT count(*) FROM kinds) = 1
