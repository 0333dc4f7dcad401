-- 0054 breaker trials: a trial that does not start gives its place to another job.
-- programs: >= 0040

ALTER TABLE breaker_trial
    ADD COLUMN chosen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN passed_at timestamptz;                   -- it has given its place up, and is none for a minute
