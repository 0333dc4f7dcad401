-- 0083 bucket map: readers of the map of buckets get what has changed since they last read it.

-- The transaction that made the last change of a row which readers of the map see; 0: one before this migration. A reader keeps a
-- transaction below which it has read everything (queries/bucket_map) and asks for the rows from there on.
ALTER TABLE bucket ADD COLUMN changed_xid bigint NOT NULL DEFAULT 0;
ALTER TABLE agent ADD COLUMN changed_xid bigint NOT NULL DEFAULT 0;
-- Set apart: as the default of a new column it would be another value for each row, and the table would be written anew.
ALTER TABLE bucket ALTER COLUMN changed_xid SET DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE agent ALTER COLUMN changed_xid SET DEFAULT pg_current_xact_id()::text::bigint;
CREATE INDEX bucket_changed ON bucket (changed_xid);
-- A renewal does not change it, so renewals stay HOT.
CREATE INDEX agent_changed ON agent (changed_xid);

-- Who has not read everything below xid has missed the end of a row that is deleted by now, and reads the whole map.
CREATE TABLE bucket_map_floor (
    one_row     boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    xid         bigint NOT NULL DEFAULT 0
);
INSERT INTO bucket_map_floor DEFAULT VALUES;

-- Triggers, so that no statement can leave it out: older programs run beside new ones, and operators write SQL of their own.
CREATE FUNCTION note_map_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END
$$;

CREATE TRIGGER bucket_changed BEFORE UPDATE ON bucket FOR EACH ROW
WHEN ((OLD.store, OLD.lane, OLD.priority, OLD.state, OLD.epoch, OLD.owner)
      IS DISTINCT FROM (NEW.store, NEW.lane, NEW.priority, NEW.state, NEW.epoch, NEW.owner))
EXECUTE FUNCTION note_map_change();

-- A renewal names none of these columns and evaluates nothing.
CREATE TRIGGER agent_changed BEFORE UPDATE OF state, handlers, share, capabilities ON agent FOR EACH ROW
WHEN ((OLD.state, OLD.handlers, OLD.share, OLD.capabilities)
      IS DISTINCT FROM (NEW.state, NEW.handlers, NEW.share, NEW.capabilities))
EXECUTE FUNCTION note_map_change();

-- A floor above the transaction that raises it comes from another server, whose dump was restored here.
CREATE FUNCTION raise_map_floor() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE bucket_map_floor AS f SET xid = after.xid
    FROM (SELECT max(changed_xid) + 1 AS xid FROM gone HAVING count(*) > 0) AS after
    WHERE after.xid > f.xid OR f.xid > pg_current_xact_id()::text::bigint;
    RETURN NULL;
END
$$;

CREATE TRIGGER bucket_dropped AFTER DELETE ON bucket REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
EXECUTE FUNCTION raise_map_floor();
CREATE TRIGGER agent_dropped AFTER DELETE ON agent REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
EXECUTE FUNCTION raise_map_floor();

-- As in migration 17: a session's temporary tables must not come before those of the cluster.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION raise_map_floor() SET search_path = %I, pg_temp', current_schema());
END
$$;
