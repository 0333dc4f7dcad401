-- before_copy: whether rows of a chunk are there already, by a sample of it, and the time of the server
-- in: $1 uuid[] some ids of the chunk
-- in: $2 uuid lowest id of the chunk
-- in: $3 uuid highest id of the chunk
-- out: present boolean, now_us bigint (microseconds since 1970)
-- move: nothing
-- fence: none: a COPY that meets a row all the same ends with an error, and writes nothing
-- index: job_pkey; the bounds prune partitions
SELECT EXISTS (SELECT FROM job WHERE id = ANY ($1::uuid[]) AND id >= $2::uuid AND id <= $3::uuid) AS present,
       to_us(clock_timestamp()) AS now_us
