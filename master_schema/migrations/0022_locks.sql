-- 0022 locks: named locks for programs of users, and actions that run once per cluster and version.
-- programs: >= 0021

-- Fencing numbers of all locks. One sequence for all of them: so the row of a lock that has been free for days can be deleted,
-- and the next holder of that name still gets a higher number.
CREATE SEQUENCE lock_fence;

-- Locks of users have a table of their own. No name of theirs can meet the leader's lease, and the leader's statement, which
-- writes its row every second, waits for no lock of theirs.
CREATE TABLE named_lock (
    name           text PRIMARY KEY,
    holder         uuid,                          -- one acquisition; NULL: given back
    fence          bigint NOT NULL,               -- grows with every holder
    label          text NOT NULL,                 -- host, process and label of the holder, for people
    acquired_at    timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL
) WITH (fillfactor = 50);                         -- renewals stay HOT: no index on what they change, room in the page

CREATE INDEX named_lock_held ON named_lock (name) WHERE holder IS NOT NULL;

-- Kept for ever: without its line an action would run again.
CREATE TABLE once_action (
    name           text NOT NULL,
    version        text NOT NULL,
    fence          bigint NOT NULL,               -- of the lock under which it ran
    label          text NOT NULL,                 -- of that holder
    done_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
);
