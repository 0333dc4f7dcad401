-- take_rows: rows of another cluster, those that are not here yet
-- in: $1 text table
-- in: $2 text[] rows, each as JSON
-- out: taken bigint
-- move: none -> HELD
-- move: none -> WAITING
-- fence: the primary key of the table: a row that is here already is left alone. A unique key has the later of two holders.
--        A line of an attempt bears the transaction that records it here: by its time, which is older, readers of streams would
--        take it for a line of an earlier turn of the transaction counter
-- index: the primary key, as the arbiter
SELECT take_rows($1::text, CASE WHEN $1 <> 'attempt' THEN $2::text[] ELSE ARRAY (
    SELECT (line::jsonb || jsonb_build_object('recorded_xid', pg_current_xact_id()::text::bigint))::text
    FROM unnest($2) AS line) END) AS taken
