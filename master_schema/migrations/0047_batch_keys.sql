-- 0047 batch keys: a batch with a key is filled again where an earlier run of its producer has ended.

-- signed_at: the last sign of the producer. The jobs are numbered from 0 in the order in which they are given; all before
-- "settled" are stored (so many: "stored") or certainly not, and none from "reserved" on is.
ALTER TABLE batch
    ADD COLUMN key       text,
    ADD COLUMN producer  uuid,
    ADD COLUMN signed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN settled   bigint NOT NULL DEFAULT 0,
    ADD COLUMN stored    bigint NOT NULL DEFAULT 0,
    ADD COLUMN reserved  bigint NOT NULL DEFAULT 0;

CREATE UNIQUE INDEX batch_key ON batch (key) WHERE key IS NOT NULL;

-- Number of the first job of a range.
ALTER TABLE batch_range ADD COLUMN first bigint NOT NULL DEFAULT 0;
