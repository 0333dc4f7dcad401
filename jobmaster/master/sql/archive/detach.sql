-- detach: the oldest range leaves job; its unfinished jobs move to the attic, the floor moves up
-- in: $1 timestamptz no store may hold an id below it alone
-- out: detached text (NULL: the oldest range is younger), moved bigint
-- move: none|SEALED -> DETACHED
-- fence: advisory lock and ACCESS EXCLUSIVE on job inside the function, given up after half a second
-- index: none; the range is read once
SELECT detached, moved FROM retire_range($1::timestamptz)
