-- sweep_end: the range of the stragglers is complete; an empty one is gone
-- in: $1 text name of the range
-- out: swept bigint
-- move: SEALED -> DETACHED
-- fence: the state in the manifest
-- index: none; the range is counted
SELECT sweep_end($1::text) AS swept
