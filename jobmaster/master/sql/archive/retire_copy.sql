-- retire_copy: the next pages of the attic and of the leaving range, unfinished rows into the new attic
-- in: $1 bigint pages
-- out: more boolean (false: all are copied)
-- move: nothing
-- fence: the row of retirement; a row that changes meanwhile is noted and copied again
-- index: none; pages by number, so that each is read once
SELECT retire_copy($1::bigint) AS more
