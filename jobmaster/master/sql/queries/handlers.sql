-- handlers: what agents have published about the handlers they can run
-- in: nothing
-- out: spec text (JSON)
-- move: nothing
-- fence: none
-- index: none; the table is small
SELECT spec::text AS spec FROM handler ORDER BY name
