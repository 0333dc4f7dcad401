"""A migrated database with one agent and one bucket, and short names for making rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import statement
from jobmaster.master.master import Master
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow, InFlightRow, NewJob
from jobmaster.model.job_view import JobView
from tests.support.patience import PATIENCE_SECONDS

SCHEMA = "jobmaster_test"
LANE = "default"
PRIORITY = 3
ERROR = b'{"type":"ValueError","message":"no"}'
DUE = 1_900_000_000_123_456
TIMEOUT = b'{"type":"TimeoutError","message":"late","reason":"timeout"}'
SNOOZED = b'{"type":"jobmaster.handlers.decisions.Snooze","message":"not now","reason":"snoozed"}'
_T = TypeVar("_T")


def new_job(
    job_id: bytes, *, due_us: int = 0, headers: bytes = b"", lane: str = LANE, priority: int = PRIORITY
) -> NewJob:
    return NewJob(job_id, priority, lane, "handler", b"{}", headers, due_us)


def final_row(job_id: bytes, fence: Fence, token: int = 1, *, state: str = "SUCCEEDED") -> FinalRow:
    return FinalRow(
        job_id, state, PRIORITY, LANE, "handler", token, fence.bucket_id, fence.epoch, 0, 0, 0, 5, 7, b"{}", b"",
        b"1" if state == "SUCCEEDED" else None, None if state == "SUCCEEDED" else ERROR,
    )  # fmt: skip


def in_flight_row(job_id: bytes, token: int = 1, *, state: str = "PROCESSING") -> InFlightRow:
    return InFlightRow(job_id, state, PRIORITY, LANE, "handler", token, 0, 0, 0, b"{}", b"")


def hold_row(
    job_id: bytes, token: int = 1, *, error: bytes | None = None, due_us: int = 0, attempt: int = 0
) -> HoldRow:
    return HoldRow(job_id, PRIORITY, LANE, "handler", token, attempt, 0, due_us, b"{}", b"", error, 11)


def entry(job_id: bytes, token: int = 1, *, rescues: int = 0) -> Entry:
    return Entry(job_id, token, "handler", b"{}", rescues=rescues)


async def connect(dsn: str, **settings: str) -> asyncpg.Connection[asyncpg.Record]:
    """A plain connection with the schema in its search path."""
    return await asyncpg.connect(dsn, server_settings={"search_path": SCHEMA, **settings})


@dataclass
class MasterFixture:
    """One cluster: ``fence`` is the ACTIVE bucket of the living agent ``owner``."""

    dsn: str
    master: Master
    sql: asyncpg.Connection[asyncpg.Record]
    """A plain connection of the test's own with the schema in its search path."""
    owner: bytes = field(default_factory=new_id)
    fence: Fence = field(default_factory=lambda: Fence(BucketId(b""), 0, AgentId(b"")))

    async def agent(
        self, agent_id: bytes, *, lease_seconds: float = 10.0, weight: int = 1, mode: str = "full"
    ) -> bytes:
        await self.master.members.register(
            Agent(
                id=agent_id, name="agent", host="host", pid=1, version="0", mode=mode, store="store", weight=weight,
                state=AgentState.ACTIVE, lease_us=0, lease_seconds=lease_seconds, started_us=0,
            ),
            [LANE],
            [],
        )  # fmt: skip
        return agent_id

    async def bucket(self, owner: bytes | None = None, *, priority: int = PRIORITY, lane: str = LANE) -> Fence:
        made = Bucket(
            id=new_id(), store="store", lane=lane, priority=priority, state=BucketState.ACTIVE, epoch=1,
            owner=owner or self.owner,
        )  # fmt: skip
        assert await self.master.buckets.create_buckets([made])
        return Fence(BucketId(made.id), 1, AgentId(made.owner))

    async def assigned(self, count: int = 1, *, fence: Fence | None = None) -> list[bytes]:
        """Jobs that were held and onboarded: ASSIGNED with token 2."""
        ids = [new_id() for _ in range(count)]
        await self.master.intake.insert_held([new_job(id_) for id_ in ids])
        answer = await self.master.onboarding.onboard(fence or self.fence, LANE, PRIORITY, 60.0, count)
        assert {entry.id for entry in answer.entries} == set(ids)
        return ids

    async def processing(self, count: int = 1) -> list[bytes]:
        """SavePending jobs that run longer than persist_within: PROCESSING with token 1."""
        ids = [new_id() for _ in range(count)]
        written = await self.master.outcomes.persist(self.fence, [in_flight_row(id_) for id_ in ids])
        assert written.accepted == set(ids)
        return ids

    async def view(self, job_id: bytes) -> JobView:
        view = await self.master.queries.get(job_id)
        assert view is not None, "the job has no row"
        return view

    async def state(self, job_id: bytes) -> str:
        return (await self.view(job_id)).state.value

    async def bucket_row(self, bucket_id: bytes) -> Bucket:
        return next(bucket for bucket in await self.master.queries.list_buckets() if bucket.id == bucket_id)

    async def jobs(self) -> list[tuple[Any, ...]]:
        """Everything in job and attempt: to show that nothing was written."""
        rows = await self.sql.fetch("SELECT to_jsonb(j) FROM job j ORDER BY id")
        lines = await self.sql.fetch("SELECT to_jsonb(a) FROM attempt a ORDER BY job_id, token")
        return [tuple(row) for row in [*rows, *lines]]

    async def lines(self, job_id: bytes) -> list[tuple[int, str]]:
        """``(token, outcome)`` of the attempts that did not conclude the job."""
        rows = await self.sql.fetch(
            "SELECT token, outcome FROM attempt WHERE job_id = $1 ORDER BY token", UUID(bytes=job_id)
        )
        return [tuple(row) for row in rows]

    async def connect(self, **settings: str) -> asyncpg.Connection[asyncpg.Record]:
        return await connect(self.dsn, **settings)

    async def lost(self, fence: Fence | None = None) -> None:
        """The bucket's owner is declared dead on proof."""
        assert await self.master.members.end_agent((fence or self.fence).owner, dead=True, reason="test")

    async def take(self, rescuer: bytes) -> Fence:
        """A lost bucket is taken by a living rescuer."""
        bucket = await self.master.rescue.take_lost(rescuer, ["store"], {})
        assert bucket is not None
        assert bucket.state is BucketState.DRAINING
        return Fence(BucketId(bucket.id), bucket.epoch, AgentId(bucket.owner))

    async def waiting(self, name: str, count: int = 1) -> None:
        """Until ``count`` sessions wait for a lock in the named statement."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
        watcher = await self.connect()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await watcher.fetchval(query, f"%{name}%") < count:
                pass  # each look is a round trip to the server
        await watcher.close()

    async def after_lock(self, name: str, call: Awaitable[_T], release: Callable[[], Awaitable[object]]) -> _T:
        """Start a call, see it wait for a lock in its statement, release the lock, return the call's answer."""
        task = asyncio.ensure_future(call)
        waiting = asyncio.ensure_future(self.waiting(name))
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            assert not task.done(), f"it did not wait for the lock: {task}"
            await waiting
            await release()
            return await task
        finally:
            task.cancel()
            waiting.cancel()

    @asynccontextmanager
    async def open_transaction(self, name: str, *args: object) -> Any:
        """The named statement, run in a transaction that stays open; yields its commit."""
        connection = await self.connect()
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetch(statement(name).text, *args)
        try:
            yield transaction.commit
        finally:
            connection.terminate()


def uuids(ids: Sequence[bytes]) -> list[UUID]:
    return [UUID(bytes=id_) for id_ in ids]
