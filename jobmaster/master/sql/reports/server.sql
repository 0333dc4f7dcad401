-- server: what doctor and status show of the server and the cluster, one row
-- in: nothing
-- out: version_number integer, version text, now_us bigint, up_seconds double precision, fsync text, synchronous_commit
--      text, full_page_writes text, in_recovery boolean, cluster_name text, cluster_uid uuid, leader uuid
-- move: nothing
-- fence: none
-- index: none
SELECT current_setting('server_version_num')::int AS version_number, current_setting('server_version') AS version,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision AS up_seconds,
       current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes, pg_is_in_recovery() AS in_recovery,
       (SELECT name FROM cluster) AS cluster_name, (SELECT uid FROM cluster) AS cluster_uid,
       (SELECT owner FROM lease WHERE name = 'leader' AND expires_at > clock_timestamp()) AS leader
