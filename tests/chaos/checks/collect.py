"""Reads what a run left in the master, and watches it meanwhile for what must never happen there."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import redis

from jobmaster.audit import AuditScope, audit
from jobmaster.embedded import EmbeddedError
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_reader, open_stores
from tests.chaos.checks.history import BatchRow, Death, Evacuation, History, Row
from tests.chaos.cluster.fleet import Fleet
from tests.chaos.cluster.servers import STORES, Servers

_ROWS = """
SELECT id, state::text, token, attempt,
       substring(convert_from(args, 'UTF8') FROM '"value":(\\d+)')::bigint AS value,
       CASE WHEN state = 'SUCCEEDED' THEN substring(convert_from(result, 'UTF8') FROM '\\d+')::bigint END AS recorded,
       coalesce(substring(convert_from(error, 'UTF8') FROM '"reason":"([a-z_]+)"'), '') AS reason
FROM job"""
_BATCHES = """
SELECT b.id, b.state, coalesce(b.succeeded + b.failed + b.cancelled + b.expired + b.unfinished, 0) AS counted,
       (SELECT count(*) FROM batch_range r JOIN job j ON j.id > r.lo AND j.id <= batch_range_end(r.lo)
        WHERE r.batch = b.id AND j.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')) AS rows,
       ARRAY (SELECT j.id FROM batch_callback c JOIN job j ON j.id = c.job_id WHERE c.batch = b.id) AS fired
FROM batch b"""
_UNENDED = """
SELECT (SELECT count(*) FROM job WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')) AS rows,
       (SELECT count(*) FROM batch WHERE look_at IS NOT NULL) AS batches,
       (SELECT count(*) FROM workflow WHERE ended_at IS NULL) AS workflows"""
_UNRESCUED = "SELECT id, state::text FROM bucket WHERE state IN ('LOST', 'DRAINING') ORDER BY id"
_EVACUATIONS = """
SELECT id, min(up_seconds) FILTER (WHERE state = 'LOST') AS left_at,
       min(up_seconds) FILTER (WHERE state = 'READY_TO_DELETE') AS emptied_at
FROM chaos.moment WHERE what = 'bucket_event' GROUP BY id HAVING bool_or(state = 'LOST')"""
_DEATHS = """
WITH agents AS (
    SELECT a.pid, min(m.up_seconds) AS began, min(m.up_seconds) FILTER (WHERE m.state = 'DEAD') AS died
    FROM agent a JOIN chaos.moment m ON m.what = 'agent' AND m.id = a.id GROUP BY a.id)
SELECT a.pid, a.died, (SELECT min(b.began) FROM agents b WHERE b.pid = a.pid AND b.began > a.began) AS again
FROM agents a WHERE a.died IS NOT NULL"""
_TRAP = (
    "CREATE SCHEMA chaos",
    "CREATE TABLE chaos.overwritten (id uuid, before text, after text, at timestamptz DEFAULT clock_timestamp())",
    """CREATE FUNCTION chaos.overwritten() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO chaos.overwritten VALUES (OLD.id, OLD.state || ' ' || OLD.token, NEW.state || ' ' || NEW.token);
        RETURN NULL; END $$""",
    """CREATE TRIGGER chaos_overwritten AFTER UPDATE ON job FOR EACH ROW
        WHEN (OLD.state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')
              AND (NEW.state, NEW.token, NEW.result) IS DISTINCT FROM (OLD.state, OLD.token, OLD.result))
        EXECUTE FUNCTION chaos.overwritten()""",
    # Faults step the wall clock of the master and start it on hosts whose boot clocks differ, in namespaces of time.
    """CREATE FUNCTION chaos.up_seconds() RETURNS float8 LANGUAGE sql SECURITY DEFINER AS $$
        SELECT split_part(pg_read_file('/proc/uptime'), ' ', 1)::float8 - coalesce(
            (regexp_match(pg_read_file('/proc/self/timens_offsets', 0, 1000, true), 'boottime\\s+(-?\\d+)'))[1]::float8, 0)
        $$""",
    "CREATE TABLE chaos.moment (what text, id uuid, state text, up_seconds float8)",
    """CREATE FUNCTION chaos.moment() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        INSERT INTO chaos.moment VALUES (TG_TABLE_NAME, (to_jsonb(NEW) ->> TG_ARGV[0])::uuid,
                                         to_jsonb(NEW) ->> TG_ARGV[1], chaos.up_seconds());
        RETURN NULL; END $$""",
    """CREATE TRIGGER chaos_moment AFTER INSERT ON bucket_event FOR EACH ROW
        EXECUTE FUNCTION chaos.moment('bucket_id', 'to_state')""",
    """CREATE TRIGGER chaos_moment AFTER INSERT OR UPDATE OF state ON agent FOR EACH ROW
        EXECUTE FUNCTION chaos.moment('id', 'state')""",
)
TRANSIENT = (asyncpg.PostgresError, asyncpg.InterfaceError, redis.RedisError, EmbeddedError, OSError, TimeoutError)


def set_trap(servers: Servers, schema: str) -> None:
    """Triggers that remember every final row that is changed, and when agents and buckets changed their state."""
    servers.sql(*_TRAP, "SELECT 1", schema=schema)


def stores_of_buckets(servers: Servers, schema: str) -> dict[str, str]:
    """Bucket -> store, as the master says at this moment; empty when it does not answer."""
    try:
        return {
            row["id"].hex: row["store"] for row in servers.sql("SELECT id, store FROM bucket", schema=schema, seconds=3)
        }
    except TRANSIENT:
        return {}


def waiting(servers: Servers, schema: str) -> dict[str, int]:
    """Jobs that are not over: rows, and entries in the stores; batches and workflows that are not over; buckets to rescue."""
    found = {name: int(count) for name, count in servers.sql(_UNENDED, schema=schema)[0].items()}
    found["buckets"] = len(unrescued(servers, schema))
    for name in STORES:
        found[name] = 0
        for server in servers.clients(name):
            with server as client:
                found[name] += _entries(client)
    return found


def unrescued(servers: Servers, schema: str) -> dict[str, str]:
    """Lost buckets that are not empty yet -> their state."""
    return {row["id"].hex: row["state"] for row in servers.sql(_UNRESCUED, schema=schema)}


def _entries(client: redis.Redis) -> int:
    """Entries and outcomes in one server."""
    count = 0
    for key in client.scan_iter(match="jm:*", count=1000):
        if key.endswith((b":pending", b":kept")) or b":claimed:" in key:
            count += int(client.llen(key))
        elif key.endswith(b":assigned"):
            count += int(client.zcard(key))
    return count


def read_master(servers: Servers, schema: str, history: History) -> None:
    """The final rows and the ledger."""
    for row in servers.sql(_ROWS, schema=schema):
        history.rows[row["id"].hex] = Row(
            row["state"],
            row["token"],
            -1 if row["value"] is None else row["value"],
            row["recorded"] or 0,
            row["attempt"],
            row["reason"],
        )
    doubled = servers.sql(
        "SELECT job_id, count(*) FROM ledger WHERE concluding GROUP BY job_id HAVING count(*) > 1", schema=schema
    )
    history.conclusions = {row[0].hex: row[1] for row in doubled}
    history.overwritten = servers.sql("SELECT count(*) FROM chaos.overwritten")[0][0]
    history.stale_refused = servers.sql("SELECT coalesce(sum(refused_count), 0)::int FROM attempt", schema=schema)[0][0]
    boot = time.time() - servers.sql("SELECT chaos.up_seconds()")[0][0]

    def wall(up_seconds: float | None) -> float:
        return math.inf if up_seconds is None else boot + up_seconds

    history.evacuations = {
        row["id"].hex: Evacuation(wall(row["left_at"]), wall(row["emptied_at"]))
        for row in servers.sql(_EVACUATIONS, schema=schema)
    }
    history.deaths = [
        Death(row["pid"], wall(row["died"]), wall(row["again"])) for row in servers.sql(_DEATHS, schema=schema)
    ]


def read_flow(servers: Servers, schema: str, history: History) -> None:
    """Batches, workflows and fires of schedules as they have ended, and what was lent of limits."""
    history.batch_rows = {
        row["id"].hex: BatchRow(row["state"], row["counted"], row["rows"], tuple(job.hex for job in row["fired"]))
        for row in servers.sql(_BATCHES, schema=schema)
    }
    history.workflow_states = {
        row["id"].hex: row["state"] for row in servers.sql("SELECT id, state FROM workflow", schema=schema)
    }
    history.loans = servers.sql("SELECT count(*) FROM permit_loan WHERE maximum IS NOT NULL", schema=schema)[0][0]
    history.fires = servers.sql("SELECT count(*) FROM schedule_fire WHERE job_id IS NOT NULL", schema=schema)[0][0]


def invariants(settings: ClusterSettings, acknowledged: Collection[str], quiet_seconds: float) -> dict[str, Any]:
    """The product's own auditor over what is left."""

    async def run() -> dict[str, Any]:
        reader = await open_reader(settings)
        stores = await open_stores(settings)
        try:
            uid = (await reader.report("server"))[0]["cluster_uid"].bytes
            for row in await reader.report("stores"):
                await stores[row["name"]].initialise(uid, row["generation"].bytes)
            scope = AuditScope(
                quiet_seconds=quiet_seconds, acknowledged=[bytes.fromhex(job) for job in acknowledged], missing_max=50
            )
            report = await audit(reader, stores, scope)
        finally:
            await reader.close()
            for store in stores.values():
                await store.close()
        evidence = {number: [list(one) for one in found] for number, found in report.evidence.items()}
        return {"violations": report.violations, "evidence": evidence}

    return asyncio.run(run())


def events(fleet: Fleet, names: Collection[str]) -> dict[str, int]:
    """How often the agents' logs contain these events."""
    found = dict.fromkeys(names, 0)
    for name in fleet.agents:
        for raw in fleet.members[name].log.read_bytes().splitlines():
            if raw.startswith(b"{"):
                try:
                    event = json.loads(raw).get("event")
                except ValueError:
                    continue
                if event in found:
                    found[event] += 1
    return found


def write(path: Path, report: Any) -> None:
    """A report as one indented JSON file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
