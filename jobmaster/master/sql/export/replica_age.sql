-- replica_age: how far a standby is behind
-- in: nothing
-- out: age_seconds double precision (NULL: this server is the primary)
-- move: nothing
-- fence: none, it reads
-- index: none
SELECT CASE WHEN NOT pg_is_in_recovery() THEN NULL
            WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
            ELSE greatest(0, extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()))
       END::double precision AS age_seconds
