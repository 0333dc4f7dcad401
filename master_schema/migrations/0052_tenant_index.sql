-- 0052 tenant index: jobs of tenants that wait in the master. (An index on job is built before the rest of its migration.)

-- Most jobs have no headers: the comparison spares them a call of the function at every write.
CREATE INDEX job_tenant_due ON job (lane, priority, (tenant_of(headers) COLLATE "C"), due_at, id)
    WHERE state = 'HELD' AND headers <> ''::bytea AND tenant_of(headers) IS NOT NULL;
