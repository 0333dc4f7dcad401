-- 0016 agent settings: what agents must agree about, and whose clock is off, can be seen.
-- programs: >= 0015

ALTER TABLE agent
    ADD COLUMN settings jsonb NOT NULL DEFAULT '{}',             -- by the key of the configuration
    ADD COLUMN clock_ahead_seconds double precision;             -- at its registration; behind: negative
