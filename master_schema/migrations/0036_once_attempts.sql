-- 0036 once attempts: the runs of actions that run once and have not been done, for those who look why.
-- programs: >= 0019

-- One line for each version of an action that was begun. It goes when the action has been done.
CREATE TABLE once_attempt (
    name           text NOT NULL,
    version        text NOT NULL,
    lock_name      text NOT NULL,
    fence          bigint NOT NULL,               -- of the lock under which the last attempt ran
    label          text NOT NULL,                 -- of that holder
    failures       integer NOT NULL DEFAULT 0,
    error          text,                          -- of the last attempt; NULL: it runs, or its program has ended
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
);
