-- 0063 agent slots: how many jobs an agent may run at once, for the figures that autoscalers read.
-- programs: >= 0062

ALTER TABLE agent ADD COLUMN slots integer NOT NULL DEFAULT 0;
