-- read_rows: all rows of a small table, for another cluster
-- in: $1 text table
-- out: rows_text text (JSON array)
-- move: nothing
-- fence: none
-- index: none; all of it is read
SELECT rows_to_move($1::text)::text AS rows_text
