-- list: actions that run, have failed or have been done; the latest first of each kind
-- in: $1 integer limit
-- out: name text, version text, label text, state text, failures integer, error text (NULL: none), changed_at timestamptz
-- move: nothing
-- fence: none
-- index: the tables are small: a line for each version of an action; named_lock_pkey for each that has not been done
WITH open AS (
    SELECT a.name, a.version, a.label, a.failures, a.error, a.changed_at,
           EXISTS (SELECT FROM named_lock l WHERE l.name = a.lock_name AND l.fence = a.fence AND l.holder IS NOT NULL
                   AND l.expires_at >= clock_timestamp()) AND a.error IS NULL AS runs
    FROM once_attempt a
    WHERE NOT EXISTS (SELECT FROM once_action o WHERE o.name = a.name AND o.version = a.version)
), listed AS (
    SELECT name, version, label, CASE WHEN runs THEN 'running' ELSE 'failed' END AS state, failures, error, changed_at FROM open
    UNION ALL
    SELECT name, version, label, 'done', 0, NULL, done_at FROM once_action
)
SELECT name, version, label, state, failures, error, changed_at FROM listed
ORDER BY state = 'done', state = 'failed', changed_at DESC, name, version
LIMIT $1::integer
