-- retire_begin: begins the retirement of the oldest range of job, or returns the one that has begun
-- in: $1 timestamptz no store may hold a job without a row below it
-- out: name text (NULL: the oldest range is younger)
-- move: nothing
-- fence: advisory lock inside the function; writers of the range and the attic are locked out while two triggers are made,
--        given up after a tenth of a second
-- index: none; catalogue
SELECT retire_begin($1::timestamptz) AS name
