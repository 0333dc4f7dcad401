-- 0025 put off tag: jobs with a paused tag are put off as jobs of a paused handler are.

-- The paused tag for which the job was put off; '': for its handler. put_back reads it, so it needs no headers.
ALTER TABLE put_off ADD COLUMN tag text NOT NULL DEFAULT '';

CREATE INDEX put_off_cause ON put_off (lane, priority, handler, tag);
