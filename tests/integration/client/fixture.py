"""A whole cluster for the client's tests: real PostgreSQL, real stores, and an agent that the test drives."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.clock import new_id
from jobmaster.codec import encode_error
from jobmaster.handlers import Handlers
from jobmaster.master.master import Master
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, ErrorInfo, FinalRow, JobState
from jobmaster.ports import ReplyStatus
from jobmaster.rules.capabilities import CAPABILITIES
from jobmaster.settings.model import AgentSettings, BucketCounts, ClusterSettings, MasterSettings, StoreSettings
from tests.conftest import MIGRATED_SCHEMA

handlers = Handlers()


class Size(msgspec.Struct):
    width: int
    height: int


@handlers.job(name="images.resize")
async def resize(path: str, width: int = 800) -> Size:
    return Size(width, 1)


@handlers.outbox("webhooks")
async def webhooks(key: str, payload: dict[str, int]) -> None: ...


@handlers.job(name="pay", lane="payroll", priority="high")
def pay(employee: int) -> None: ...


def settings_for(cluster: str, urls: dict[str, str], **parts: object) -> ClusterSettings:
    """Settings of a cluster whose agents serve lanes ``default`` and ``payroll``."""
    counts = BucketCounts()
    values: dict[str, object] = {
        "cluster": cluster,
        "master": MasterSettings(schema=MIGRATED_SCHEMA),
        "stores": {name: StoreSettings(url=url, call_timeout_seconds=30.0) for name, url in urls.items()},
        "agents": {"default": AgentSettings(lanes={"default": counts, "payroll": counts})},
        **parts,
    }
    return ClusterSettings(**values)  # type: ignore[arg-type]  # names of parts are the test's business


class DrivenAgent:
    """An agent without a runtime: it owns buckets, and each of its steps is a call by the test."""

    def __init__(self, master: Master, store: AgentStore, name: str) -> None:
        self.master = master
        self.store = store
        self.store_name = name
        self.id = AgentId(new_id())
        self.buckets: dict[tuple[str, int], list[Bucket]] = {}
        self.capabilities = tuple(sorted(CAPABILITIES))
        self._lists = 0

    async def start(self, publish: Handlers) -> None:
        """Register with a lease longer than any test, and publish handlers."""
        agent = Agent(
            id=self.id, name="hand", host="here", pid=1, version="0", mode="full", store=self.store_name, weight=1,
            state=AgentState.ACTIVE, lease_us=0, lease_seconds=600.0, started_us=0,
            capabilities=self.capabilities,
        )  # fmt: skip
        await self.master.members.register(agent, ["default", "payroll"], [handler.spec for handler in publish])

    async def open(self, lane: str = "default", priority: int = 3, count: int = 1) -> list[Bucket]:
        """Further ACTIVE buckets."""
        made = [
            Bucket(
                id=new_id(), store=self.store_name, lane=lane, priority=priority, state=BucketState.ACTIVE, epoch=1,
                owner=self.id,
            )
            for _ in range(count)
        ]  # fmt: skip
        assert await self.master.buckets.create_buckets(made)
        for bucket in made:
            assert await self.store.open_bucket(self.fence(bucket)) is ReplyStatus.OK
        self.buckets.setdefault((lane, priority), []).extend(made)
        return made

    def fence(self, bucket: Bucket) -> Fence:
        return Fence(BucketId(bucket.id), bucket.epoch, self.id)

    async def claim(self, bucket: Bucket) -> tuple[str, list[Entry]]:
        """What waits in a bucket (at most 10,000 jobs), and the name of the list it lies in now."""
        self._lists += 1
        name = f"hand-{self._lists}"
        answer = await self.store.claim(self.fence(bucket), name, 10_000)
        assert answer.status is ReplyStatus.OK
        return name, answer.entries

    async def finish(
        self,
        bucket: Bucket,
        claimed: tuple[str, Sequence[Entry]],
        *,
        state: JobState = JobState.SUCCEEDED,
        result: bytes | None = None,
        error: ErrorInfo | None = None,
    ) -> None:
        """Record one outcome for every claimed entry, settle the list and publish the news."""
        name, entries = claimed
        rows = [
            FinalRow(
                entry.id, state.value, bucket.priority, bucket.lane, entry.handler, entry.token, bucket.id, bucket.epoch,
                entry.attempt + 1, entry.rescues, entry.due_us, 0, 0, entry.args, entry.headers, result,
                None if error is None else encode_error(error),
            )
            for entry in entries
        ]  # fmt: skip
        written = await self.master.outcomes.record_final(rows)
        assert written.accepted | written.refused == {entry.id for entry in entries}
        assert await self.store.settle(self.fence(bucket), [name], [entry.id for entry in entries]) is ReplyStatus.OK

    async def work_off(self, *, result: bytes | None = b"null") -> int:
        """Finish everything that waits in any bucket; how many jobs that were."""
        done = 0
        for buckets in self.buckets.values():
            for bucket in buckets:
                claimed = await self.claim(bucket)
                await self.finish(bucket, claimed, result=result)
                done += len(claimed[1])
        return done


class ClientFixture:
    """Servers, a client and an agent of one test."""

    def __init__(
        self, settings: ClusterSettings, dsn: str, master: Master, agent: DrivenAgent, cluster: Cluster
    ) -> None:
        self.settings = settings
        self.dsn = dsn
        self.master = master
        self.agent = agent
        self.store = agent.store
        self.cluster = cluster

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A plain connection of the caller's own application to the master's database."""
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(self.dsn)
        await connection.execute(f"SET search_path TO {self.settings.schema_name()}")
        return connection

    async def rows(self) -> dict[bytes, str]:
        """Every job row: id and state."""
        connection = await self.connect()
        try:
            return {row["id"].bytes: row["state"] for row in await connection.fetch("SELECT id, state FROM job")}
        finally:
            await connection.close()

    async def waiting(self) -> dict[bytes, Entry]:
        """Every entry in any bucket of the agent (claims them)."""
        found: dict[bytes, Entry] = {}
        for buckets in self.agent.buckets.values():
            for bucket in buckets:
                while entries := (await self.agent.claim(bucket))[1]:
                    found.update((entry.id, entry) for entry in entries)
        return found
