-- 0024 schedules: definitions of recurring jobs, and one line for each nominal time that was decided.
-- programs: >= 0019

CREATE TABLE schedule (
    name             text PRIMARY KEY,
    source           text NOT NULL CHECK (source IN ('code', 'yaml', 'api')),
    digest           text NOT NULL,
    definition       bytea NOT NULL,                -- JSON, without the arguments
    handler          text NOT NULL,
    args             bytea NOT NULL,                -- JSON object
    priority         smallint NOT NULL CHECK (priority BETWEEN 1 AND 5),
    lane             text NOT NULL,
    expression       text NOT NULL,
    zone             text NOT NULL,
    overlap          text NOT NULL CHECK (overlap IN ('skip', 'queue', 'parallel', 'cancel_previous')),
    tags             text[] NOT NULL DEFAULT '{}',
    -- When the agent started that declared it. Only an agent that started later replaces the definition, so a rolling deploy
    -- never brings an older one back.
    declared_at      timestamptz NOT NULL,
    revision         bigint NOT NULL DEFAULT 1,     -- grows with every change but a fire
    next_fire        timestamptz,                   -- the nominal time that is decided next; NULL: the schedule has ended
    decide_at        timestamptz,                   -- when the leader looks at it; NULL: paused, retired or ended
    last_fire        timestamptz,                   -- decided last under this definition
    last_jobs        uuid[] NOT NULL DEFAULT '{}',  -- jobs of earlier fires that may not have ended
    paused_at        timestamptz,
    paused_by        text NOT NULL DEFAULT '',
    paused_reason    text NOT NULL DEFAULT '',
    undeclared_since timestamptz,                   -- since when no living agent declares it
    retired_at       timestamptz,
    retired_reason   text NOT NULL DEFAULT '',
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT schedule_rests CHECK (decide_at IS NULL OR (next_fire IS NOT NULL AND paused_at IS NULL AND retired_at IS NULL))
);

CREATE INDEX schedule_decide ON schedule (decide_at) WHERE decide_at IS NOT NULL;

-- One line per decided fire. The key is the second guard against two jobs of one nominal time; the first is the compare-and-set
-- on next_fire.
CREATE TABLE schedule_fire (
    schedule         text NOT NULL,
    nominal          timestamptz NOT NULL,
    outcome          text NOT NULL CHECK (outcome IN ('fired', 'skipped', 'missed', 'withdrawn')),
    job_id           uuid,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    through          timestamptz,                   -- the line stands for all fires from nominal up to this time, without it
    previous         timestamptz,                   -- nominal time of the line before; NULL: the first under its definition
    manual           boolean NOT NULL DEFAULT false, -- run by a person, outside the recurrence
    leader_epoch     bigint,
    PRIMARY KEY (schedule, nominal),
    CONSTRAINT schedule_fire_has_its_job CHECK ((outcome IN ('fired', 'withdrawn')) = (job_id IS NOT NULL))
);

CREATE INDEX schedule_fire_at ON schedule_fire (at);

ALTER TABLE agent ADD COLUMN schedules text[] NOT NULL DEFAULT '{}';  -- names that its code and configuration declare

CREATE VIEW schedules AS
SELECT name,
       source,
       handler,
       expression,
       zone,
       lane,
       priority_label(priority) AS priority,
       overlap,
       tags,
       next_fire,
       last_fire,
       paused_at,
       paused_by,
       paused_reason,
       retired_at,
       retired_reason,
       declared_at,
       changed_at
FROM schedule;

CREATE VIEW schedule_fires AS
SELECT f.schedule,
       f.nominal,
       f.outcome,
       f.job_id,
       j.state::text AS job_state,
       f.at,
       f.through,
       f.manual
FROM schedule_fire f
LEFT JOIN job j ON j.id = f.job_id;
