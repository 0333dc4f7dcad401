-- 0012 unserved: jobs whose handler no owner of a matching bucket has, put off so that they are not read over for others.
-- Such a job keeps its row and its state; only due_at moves. Its own due time is here until it is put back.

CREATE TABLE put_off (
    job_id         uuid PRIMARY KEY,
    lane           text NOT NULL,
    priority       smallint NOT NULL,
    handler        text NOT NULL,
    due_at         timestamptz NOT NULL,            -- when the job was due before it was put off
    until          timestamptz NOT NULL             -- the due_at that it has meanwhile; another one: the line is void
);

CREATE INDEX put_off_kind ON put_off (lane, priority, handler, due_at);
