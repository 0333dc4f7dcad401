-- set_mode: an operator changes the mode of the cluster
-- in: $1 text mode
-- in: $2 text the actor
-- in: $3 text reason
-- out: former text
-- move: nothing
-- fence: inside the function: the row of the cluster, and for archived a lock that keeps writers of job out
-- index: job_due, job_by_bucket and others for the one look at unfinished jobs
SELECT set_cluster_mode($1::text, $2::text, $3::text) AS former
