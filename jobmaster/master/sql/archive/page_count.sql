-- page_count: the pages of a table
-- in: $1 text its name
-- out: pages bigint
-- move: nothing
-- fence: none
-- index: none
SELECT pg_relation_size(quote_ident($1::text)::regclass) / current_setting('block_size')::bigint AS pages
