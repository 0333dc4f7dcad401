-- 0042 ordering index: jobs of an ordering key that have not ended. (An index on job is built before the rest of its migration.)

CREATE INDEX job_ordering ON job (ordering_key(headers), id)
    WHERE state IN ('HELD', 'ASSIGNED', 'PROCESSING', 'WAITING') AND ordering_key(headers) IS NOT NULL;
