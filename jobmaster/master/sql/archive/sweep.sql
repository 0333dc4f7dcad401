-- sweep: stragglers that ended in the attic leave as a range of their own
-- in: $1 timestamptz those that ended before it
-- out: detached text (NULL: there is none), swept bigint
-- move: none -> DETACHED
-- fence: advisory lock and SHARE ROW EXCLUSIVE on the attic inside the function, given up after half a second
-- index: none; the attic is small and read twice
SELECT detached, swept FROM sweep_attic($1::timestamptz)
