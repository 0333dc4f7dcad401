"""A real schema with a small correct history in it, and ways to break an invariant past every guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.audit import AuditReport, AuditScope, audit
from jobmaster.clock import new_id
from jobmaster.master.reports import Reader
from jobmaster.settings.model import StoreSettings
from tests.conftest import MIGRATED_SCHEMA

SCHEMA = MIGRATED_SCHEMA


def fresh() -> UUID:
    return UUID(bytes=new_id())


class AuditedCluster:
    """One master and one store, with ways to break an invariant in them."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], reader: Reader, store: AgentStore) -> None:
        self.connection = connection
        self.reader = reader
        self.store = store
        self.agent, self.rescuer, self.bucket = fresh(), fresh(), fresh()

    async def execute(self, statement: str, *values: Any) -> None:
        await self.connection.execute(statement, *values)

    async def add_agent(self, agent: UUID, state: str = "ACTIVE", lease: str = "1 hour") -> None:
        await self.execute(
            "INSERT INTO agent"
            " (id, name, host, pid, version, mode, store, weight, lease_seconds, state, lease_until, ended_at)"
            " VALUES ($1, 'a', 'h', 1, '0', 'full', 'default', 1, 10, $2::text::agent_state,"
            " clock_timestamp() + $3::text::interval, CASE WHEN $2 IN ('DEAD', 'RETIRED') THEN clock_timestamp() END)",
            *(agent, state, lease),
        )

    async def add_bucket(self, bucket: UUID, owner: UUID, priority: int = 3, lane: str = "default") -> None:
        await self.execute(
            "INSERT INTO bucket (id, store, lane, priority, owner) VALUES ($1, 'default', $2, $3, $4)",
            *(bucket, lane, priority, owner),
        )
        await self.add_event(bucket, None, "ACTIVE", 1, owner)

    async def add_event(self, bucket: UUID, before: str | None, after: str, epoch: int, actor: UUID | None) -> None:
        await self.execute(
            "INSERT INTO bucket_event (bucket_id, from_state, to_state, epoch, actor, reason)"
            " VALUES ($1, $2::text::bucket_state, $3::text::bucket_state, $4, $5, 'test')",
            *(bucket, before, after, epoch, actor),
        )

    async def add_job(self, state: str, **columns: Any) -> UUID:
        """A lawful row of that state, but for what ``columns`` says."""
        row: dict[str, Any] = {
            "id": fresh(),
            "priority": 3,
            "lane": "default",
            "handler": "h",
            "token": 2,
            "args": b"{}",
        }
        if state == "HELD":
            row["token"] = 1
        else:
            row |= {"bucket_id": self.bucket, "bucket_epoch": 1}
        if state == "FAILED":
            row["error"] = b'{"type":"X","message":"m"}'
        row |= columns
        names, marks = ", ".join(row), ", ".join(f"${at}" for at in range(2, len(row) + 2))
        due = ", due_at" if state == "HELD" else ""
        now = ", clock_timestamp()" if state == "HELD" else ""
        await self.execute(
            f"INSERT INTO job (state, {names}{due}) VALUES ($1::text::job_state, {marks}{now})", state, *row.values()
        )
        assert isinstance(row["id"], UUID)
        return row["id"]

    async def add_attempt(self, job: UUID, token: int, outcome: str = "failed", refused: bool = False) -> None:
        await self.execute(
            "INSERT INTO attempt (job_id, token, bucket_id, bucket_epoch, outcome, refused_at)"
            " VALUES ($1, $2, $3, 1, $4, CASE WHEN $5 THEN clock_timestamp() END)",
            *(job, token, self.bucket, outcome, refused),
        )

    async def audit(self, **scope: Any) -> AuditReport:
        return await audit(self.reader, {"default": self.store}, AuditScope(**scope))


@pytest.fixture
async def audited(migrated_dsn: str, store_url: str, cluster_name: str) -> AsyncIterator[AuditedCluster]:
    connection = await asyncpg.connect(migrated_dsn, server_settings={"search_path": SCHEMA})
    reader = await Reader.connect(dsn=migrated_dsn, schema=SCHEMA)
    store = await AgentStore.connect(cluster=cluster_name, name="default", url=store_url, settings=StoreSettings())
    await store.initialise(new_id(), new_id())
    found = AuditedCluster(connection, reader, store)
    await found.add_agent(found.agent)
    await found.add_agent(found.rescuer)
    await found.add_bucket(found.bucket, found.agent)
    yield found
    await store.close()
    await reader.close()
    await connection.close()


@pytest.fixture
async def history(audited: AuditedCluster) -> AuditedCluster:
    """Everything that may lawfully happen."""
    for state in ("HELD", "ASSIGNED", "PROCESSING", "SUCCEEDED", "FAILED", "CANCELLED"):
        await audited.add_job(state)
    retried = await audited.add_job("SUCCEEDED", token=3, attempt=1)
    await audited.add_attempt(retried, 2)
    waiting = await audited.add_job("HELD", token=2, attempt=1)
    await audited.add_attempt(waiting, 2, "timed_out")
    late = await audited.add_job("SUCCEEDED", token=4)
    await audited.add_attempt(late, 2, "lost", refused=True)
    failed_by_rescue = await audited.add_job("FAILED", token=2, rescues=3)
    await audited.add_attempt(failed_by_rescue, 2, "refused", refused=True)
    keyed = await audited.add_job("SUCCEEDED", headers=b'{"key":"k1","metadata":{"x":"\\u0000"}}')
    await audited.execute("INSERT INTO idempotency (scope, key, job_id, digest) VALUES ('h', 'k1', $1, '')", keyed)
    for begin, state in ((100, "SUCCEEDED"), (160, "FAILED")):
        window = f'"unique_from_us":{begin},"unique_until_us":{begin + 60}'
        await audited.add_job(state, headers=f'{{"unique_key":"w","unique_term":"window",{window}}}'.encode())
    live, gone = (
        b'{"unique_key":"l","unique_term":"live"}',
        b'{"unique_key":"l","unique_term":"live","superseded_by":"x"}',
    )
    for state, headers in (("SUCCEEDED", live), ("PROCESSING", gone), ("HELD", live)):
        await audited.add_job(state, headers=headers)
    await audited.execute(
        "INSERT INTO lease (name, owner, epoch, expires_at) VALUES ('leader', $1, 1, now() + interval '1 hour')",
        audited.agent,
    )
    dead, taken = fresh(), fresh()
    await audited.add_agent(dead, "DEAD", "-1 hour")
    await audited.add_bucket(taken, dead)
    await audited.add_event(taken, "ACTIVE", "LOST", 1, dead)
    await audited.add_event(taken, "LOST", "DRAINING", 2, audited.rescuer)
    await audited.add_event(taken, "DRAINING", "READY_TO_DELETE", 2, audited.rescuer)
    await audited.execute(
        "UPDATE bucket SET state = 'READY_TO_DELETE', epoch = 2, owner = $2 WHERE id = $1", taken, audited.rescuer
    )
    left, retired = fresh(), fresh()
    await audited.add_agent(left, "RETIRED", "-1 hour")
    await audited.add_bucket(retired, left)
    await audited.add_event(retired, "ACTIVE", "COMPLETING", 1, left)
    await audited.add_event(retired, "COMPLETING", "READY_TO_DELETE", 1, left)
    return audited
