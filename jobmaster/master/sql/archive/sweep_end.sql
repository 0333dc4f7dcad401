-- sweep_end: completes the range of a sweep; an empty one is removed
-- in: $1 text name of the range
-- out: swept bigint
-- move: SEALED -> DETACHED
-- fence: the state in the manifest
-- index: none; the range is counted
SELECT sweep_end($1::text) AS swept
