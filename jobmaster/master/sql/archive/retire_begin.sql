-- retire_begin: the oldest range begins to leave job, or the one that has begun goes on
-- in: $1 timestamptz no store may hold an id below it alone
-- out: name text (NULL: the oldest range is younger)
-- move: nothing
-- fence: advisory lock inside the function; writers of the range and the attic are locked out while two triggers are made,
--        given up after a tenth of a second
-- index: none; catalogue
SELECT retire_begin($1::timestamptz) AS name
