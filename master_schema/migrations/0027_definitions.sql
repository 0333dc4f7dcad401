-- 0027 definitions: which definitions of schedules an agent declares, and which ones a definition has replaced.
-- programs: >= 0019

-- Digests of the definitions that its code and configuration declare.
ALTER TABLE agent ADD COLUMN schedule_digests text[] NOT NULL DEFAULT '{}';

-- Digests of definitions that were replaced by that of an agent that started later, the newest first. None of them comes back
-- while a living agent declares the present definition.
ALTER TABLE schedule ADD COLUMN superseded text[] NOT NULL DEFAULT '{}';
