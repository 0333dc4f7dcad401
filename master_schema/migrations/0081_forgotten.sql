-- 0081 forgotten: how many jobs of an archived range were deleted from the lake by `jobmaster pipeline forget`.
ALTER TABLE archive_manifest ADD COLUMN forgotten bigint NOT NULL DEFAULT 0;
