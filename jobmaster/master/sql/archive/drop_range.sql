-- drop_range: drops the tables of a range; from then on its jobs are in the lake alone
-- in: $1 text name of the range
-- in: $2 boolean whether an operator discards it without a copy
-- out: dropped boolean (false: it was dropped before)
-- move: PUBLISHED|DETACHED -> DROPPED
-- fence: inside the function: PUBLISHED, the same tables, the verified counts; DETACHED only when it is discarded. Both are
--        counted under a lock that does not block readers; the lock that does is given up after a tenth of a second
-- index: none; both tables are counted
SELECT drop_detached($1::text, $2::boolean) AS dropped
