"""A store is emptied under an owner that holds jobs without a row: they go to the master and end. Over real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
import redis.asyncio as redis

from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry
from jobmaster.doctor.checks import loss_finding
from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.handlers import Handlers, JobContext
from jobmaster.master.reports import Reader
from jobmaster.model.job import Entry
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.bucket_worker import BucketWorker
from jobmaster_agents.buckets.lost_buckets import LostBuckets
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.fetch.claimer import PrefetchLimit
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import HIGH_WATER, PRIORITY, DrivenCluster, Owner
from tests.support.waiting import until

handlers = Handlers()
gate = asyncio.Event()
ran: list[bytes] = []


@handlers.job(name="work", timeout=1e6)
async def work(ctx: JobContext) -> None:
    ran.append(ctx.job_id_bytes)
    await gate.wait()


class Life:
    """An agent with one bucket, one slot and a long buffer."""

    def __init__(self, owner: Owner, lane: str) -> None:
        self.owner = owner
        owner.ownership.trust(term(SystemClock().boottime(), 600.0))
        self.telemetry = Telemetry()
        self.owned = OwnedBucket(owner.fence, lane, PRIORITY, "default")
        self.bucket_worker = BucketWorker(
            ClusterSettings(), AgentSettings(slots=1, bucket_buffer=800), owner.master, owner.store, owner.ownership,
            handlers, SystemClock(), self.telemetry, EventLog(), owner.agent_id.hex()[-12:],
        )  # fmt: skip
        self.lost_buckets = LostBuckets(
            owner.ownership,
            owner.master.buckets,
            self.bucket_worker.memory_recovery,
            lambda _: None,
            self.telemetry,
            EventLog(),
        )

    async def submit(self, entries: list[Entry]) -> None:
        raw = [encode_entry(entry) for entry in entries]
        assert (await self.owner.store.submit(self.owner.fence.bucket_id, raw, **HIGH_WATER)).status is ReplyStatus.OK


@asynccontextmanager
async def living(owner: Owner, lane: str) -> AsyncIterator[Life]:
    life = Life(owner, lane)
    running = asyncio.ensure_future(life.bucket_worker.run())
    life.bucket_worker.open(life.owned)
    try:
        yield life
    finally:
        gate.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await life.bucket_worker.aclose()


async def emptied(driven: DrivenCluster) -> None:
    """FLUSHALL, as far as this cluster is concerned."""
    raw = redis.from_url(driven.store_url)
    keys = [key async for key in raw.scan_iter(match=f"jm:{{{driven.cluster}*", count=1000)]
    assert keys
    await raw.delete(*keys)
    await raw.aclose()


@pytest.fixture(autouse=True)
def afresh() -> None:
    gate.clear()
    ran.clear()


async def test_jobs_that_wait_in_their_owners_buffer_outlive_their_store(driven: DrivenCluster) -> None:
    owner = await driven.owner()
    entries = [Entry(new_id(), 1, "work", b"{}") for _ in range(500)]
    unfit = Entry(new_id(), 1, "nul\0", b"{}")
    async with living(owner, owner.lane) as life:
        await life.submit(entries)
        await until(lambda: len(life.bucket_worker.job_table) == 500 and len(ran) == 1)
        await life.submit([unfit])
        await until(lambda: len(life.bucket_worker.job_table) == 501)
        await emptied(driven)
        life.bucket_worker.claimers[owner.fence.bucket_id].wake()
        await until(lambda: life.owned.lost)
        await life.lost_buckets.tick()
        assert life.telemetry.jobs_salvaged == 500, "one is safe in quarantine"
        assert life.telemetry.jobs_at_risk == 0
        assert set((await driven.jobs()).values()) == {("HELD", 1, 0)}
        kept = await driven.rows("SELECT entry FROM quarantine")
        assert [row["entry"] for row in kept] == [encode_entry(unfit)]
        assert (await driven.bucket_state(owner.fence.bucket_id))[0] == "LOST"
        finding = await _finding(driven)
        assert finding.status is CheckStatus.OK
        assert "all 500 jobs were saved" in finding.detail
    rescuer = await driven.agent()
    await rescuer.store.initialise(rescuer.master.cluster.uid, new_id())
    await rescuer.rescue().tick()
    heir = await driven.owner()
    await driven.rows("UPDATE bucket SET lane = $1 WHERE id = $2::uuid", owner.lane, heir.fence.bucket_id.hex())
    async with living(heir, owner.lane) as life:
        life.bucket_worker.due_fetcher.kick(heir.fence.bucket_id)
        await until(
            lambda: (
                len(ran) > 1 and not len(life.bucket_worker.job_table) and not life.bucket_worker.outcome_writer.backlog
            )
        )
        await until(lambda: set(ran) == {entry.id for entry in entries})
        await life.bucket_worker.outcome_writer.wait_settled()
    after = await driven.jobs()
    assert after == {entry.id: ("SUCCEEDED", 2, 0) for entry in entries}


async def _finding(driven: DrivenCluster) -> Finding:
    reader = await Reader.connect(dsn=driven.dsn, schema=driven.schema)
    try:
        return await loss_finding(reader)
    finally:
        await reader.close()


async def test_the_doctor_names_what_waited_in_a_store_that_was_emptied(driven: DrivenCluster) -> None:
    assert (await _finding(driven)).status is CheckStatus.OK
    owner = await driven.owner()
    async with living(owner, owner.lane) as life:
        life.bucket_worker.claimers[owner.fence.bucket_id].prefetch_limit = PrefetchLimit(2, 0)
        await life.submit([Entry(new_id(), 1, "work", b"{}") for _ in range(5)])
        await until(lambda: life.bucket_worker.claimers[owner.fence.bucket_id].waiting == 3)
        await emptied(driven)
        await life.bucket_worker.claimers[owner.fence.bucket_id].adopt_unknown_lists()
        assert life.owned.lost
        await life.lost_buckets.tick()
        assert (life.telemetry.jobs_at_risk, life.telemetry.jobs_salvaged) == (3, 2)
    finding = await _finding(driven)
    assert finding.status is CheckStatus.WARN
    assert finding.detail.startswith("3 job(s) without a row lay in 1 bucket(s)")
    assert "(2 more were saved)" in finding.detail
    assert f"3 in bucket {UUID(bytes=owner.fence.bucket_id)} of store default" in finding.detail
    assert "GEN" in finding.detail


async def test_an_older_copy_that_comes_back_with_the_store_is_refused_by_the_row(driven: DrivenCluster) -> None:
    """The owner's copy is HELD already when a rescuer finds the entry in the store: it runs once."""
    owner, rescuer = await driven.owner(), await driven.agent()
    entry = Entry(new_id(), 1, "work", b"{}")
    async with living(owner, owner.lane) as life:
        await life.submit([entry])
        await until(lambda: len(ran) == 1)
        owner.ownership.lose(owner.fence.bucket_id, "its store fell back")
        await life.lost_buckets.tick()
        assert await driven.jobs() == {entry.id: ("HELD", 1, 0)}
    task = rescuer.rescue()
    await task.tick()
    assert await driven.bucket_state(owner.fence.bucket_id) == ("READY_TO_DELETE", 2)
    assert rescuer.telemetry.drain_refusals == 1
    assert await driven.jobs() == {entry.id: ("HELD", 1, 0)}


async def test_an_owner_whose_bucket_is_anothers_writes_nothing(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    async with living(owner, owner.lane) as life:
        entry = Entry(new_id(), 1, "work", b"{}")
        await life.submit([entry])
        await until(lambda: len(ran) == 1)
        await owner.die()
        await rescuer.rescue().tick()
        assert await driven.jobs() == {entry.id: ("HELD", 2, 1)}
        owner.ownership.lose(owner.fence.bucket_id, "fenced")
        await life.lost_buckets.tick()
        assert life.telemetry.jobs_salvaged == 0
    assert await driven.jobs() == {entry.id: ("HELD", 2, 1)}
