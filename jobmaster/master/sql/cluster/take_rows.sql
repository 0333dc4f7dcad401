-- take_rows: rows of another cluster, those that are not here yet
-- in: $1 text table
-- in: $2 text[] rows, each as JSON
-- out: taken bigint
-- move: none -> HELD
-- move: none -> WAITING
-- fence: the primary key of the table: a row that is here already is left alone. A unique key has the later of two holders
-- index: the primary key, as the arbiter
SELECT take_rows($1::text, $2::text[]) AS taken
