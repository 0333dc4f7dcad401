-- 0040 breakers: circuit breakers of resources, shared by the cluster.

-- One line for each resource that a handler names. OPEN and HALF_OPEN hold the jobs of its handlers as a pause does, and each
-- change of what agents have to obey increases the version of the pauses.
CREATE TABLE breaker (
    name            text PRIMARY KEY,
    state           text NOT NULL DEFAULT 'CLOSED' CHECK (state IN ('CLOSED', 'OPEN', 'HALF_OPEN')),
    epoch           bigint NOT NULL DEFAULT 0,          -- grows with each change of state: a time, as the version of the pauses
    looks           bigint NOT NULL DEFAULT 0,          -- grows with each choice of trials: of two leaders one chooses
    until           timestamptz,                        -- OPEN: becomes HALF_OPEN then; NULL: when an operator closes it
    failures        double precision NOT NULL,
    window_seconds  double precision NOT NULL,
    min_calls       integer NOT NULL,
    open_seconds    double precision NOT NULL,
    half_open       integer NOT NULL,
    declared_at     timestamptz NOT NULL,               -- start of the agent that has declared these numbers
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor           text NOT NULL DEFAULT '',
    reason          text NOT NULL DEFAULT ''
);

CREATE TABLE breaker_handler (
    handler         text PRIMARY KEY,
    breaker         text NOT NULL
);

-- What an agent has counted since its line before. Its own number makes a repeated insert one line.
CREATE TABLE breaker_result (
    breaker         text NOT NULL,
    agent_id        uuid NOT NULL,
    number          bigint NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    calls           integer NOT NULL,
    failures        integer NOT NULL,
    PRIMARY KEY (breaker, agent_id, number)
);
CREATE INDEX breaker_result_time ON breaker_result (breaker, at);

-- The jobs that may try the resource while the breaker is half-open.
CREATE TABLE breaker_trial (
    breaker         text NOT NULL,
    epoch           bigint NOT NULL,
    job_id          uuid NOT NULL,
    attempt         integer NOT NULL,                   -- of the job when it was chosen
    failed          boolean,                            -- NULL: under way
    PRIMARY KEY (breaker, job_id)
);
