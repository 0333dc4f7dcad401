-- record: one migration has been applied
-- in: $1 integer number
-- in: $2 text name
-- in: $3 text checksum (sha256)
-- in: $4 integer programs that know the migrations up to this number may run on it
-- out: nothing
-- move: nothing
-- fence: the primary key, inside the migration's transaction
-- index: schema_migration_pkey
INSERT INTO schema_migration (number, name, checksum, programs) VALUES ($1::integer, $2::text, $3::text, $4::integer)
