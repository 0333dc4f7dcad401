-- 0084 batch notes: a batch whose last job no agent has ended is counted at once, too.

-- Ranges of batches of which a job has ended without an agent that tells of it (batches/tally): it has expired, was cancelled while it
-- waited, was given up by a rescue, or was confirmed from outside. One row for each such job, so that no statement waits for another
-- one; the leader adds them to its own tallies (batches/take_notes). A hint, as these are.
CREATE TABLE batch_note (
    lo               uuid NOT NULL                  -- lowest id of the range of the job; there may be no such batch
);

CREATE INDEX batch_note_lo ON batch_note (lo);

CREATE FUNCTION note_batch_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO batch_note (lo) VALUES (batch_range_of(NEW.id));
    RETURN NULL;
END
$$;

-- A trigger, so that no statement can leave it out. An agent that ends a job writes how long it ran, and tells of it itself. A row
-- that ends no job of a batch costs these conditions, and no event is queued for it.
CREATE TRIGGER batch_job_ended AFTER UPDATE OF state ON job FOR EACH ROW
WHEN ((NEW.ran_us IS NULL OR OLD.state = 'WAITING') AND NEW.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
      AND OLD.state IS DISTINCT FROM NEW.state AND position('"batch":true'::bytea IN NEW.headers) > 0)
EXECUTE FUNCTION note_batch_end();

-- As in migration 17: a session's temporary tables must not come before those of the cluster.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION note_batch_end() SET search_path = %I, pg_temp', current_schema());
    EXECUTE 'REVOKE ALL ON FUNCTION note_batch_end() FROM PUBLIC';
END
$$;
