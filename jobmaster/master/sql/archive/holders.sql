-- holders: transactions that hold a lock on some tables
-- in: $1 text[] names of the tables
-- out: holder text (virtual transaction), pid integer (NULL: a prepared transaction)
-- move: nothing
-- fence: none, it reads
-- index: none; the lock table
SELECT DISTINCT l.virtualtransaction AS holder, l.pid
FROM pg_locks l
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT to_regclass(quote_ident(name))::oid FROM unnest($1::text[]) AS name)
