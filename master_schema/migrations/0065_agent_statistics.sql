-- 0065 agent statistics: what the process of an agent and its host do, published with a renewal.
-- programs: >= 0058

ALTER TABLE agent
    ADD COLUMN statistics    jsonb,                 -- jobmaster.model.inspection.views.AgentStatistics; NULL: none yet
    ADD COLUMN statistics_at timestamptz;
