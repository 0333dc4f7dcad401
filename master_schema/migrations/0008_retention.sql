-- 0008 retention: old idempotency keys are found without reading all of them. Keys come in the order of time, so a summary of
-- each range of pages is enough, and costs a keyed submit nothing to speak of.

CREATE INDEX idempotency_age ON idempotency USING brin (created_at) WITH (pages_per_range = 16, autosummarize = on);
