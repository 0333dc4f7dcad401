"""An agent with one bucket, over real servers, and an operator who stops it and lets it go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.ids import text
from jobmaster.model.job import Entry
from jobmaster.ports import ReplyStatus
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.bucket_worker import BucketWorker
from jobmaster_agents.buckets.ownership_check import OwnershipCheck
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import HIGH_WATER, PRIORITY, DrivenCluster, Owner
from tests.support.idle import is_idle
from tests.support.waiting import until

handlers = Handlers()
began: Counter[bytes] = Counter()
gates: dict[str, asyncio.Event] = {}


@handlers.job(name="gated", timeout=1e6, max_attempts=2, backoff=0, backoff_jitter=0.0)
async def gated(ctx: JobContext, gate: str) -> str:
    began[ctx.job_id_bytes] += 1
    await gates[gate].wait()
    if gate == "fails" and ctx.attempt == 1:
        raise RuntimeError("as asked")
    return "through"


@handlers.job(name="fenced", start="fenced")
async def fenced(ctx: JobContext) -> None:
    began[ctx.job_id_bytes] += 1


def encoded(gate: str, due_us: int = 0) -> tuple[bytes, bytes]:
    job_id = new_id()
    return job_id, encode_entry(Entry(job_id, 1, "gated", b'{"gate":"%s"}' % gate.encode(), due_us))


class Life:
    """One agent with one bucket and two slots, and its ownership check."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        owner.ownership.trust(term(SystemClock().boottime(), 600.0))
        telemetry = Telemetry()
        self.owned = OwnedBucket(owner.fence, owner.lane, PRIORITY, "default")
        self.lost: list[str] = []
        owner.ownership.on_lost.append(lambda _, why: self.lost.append(why))
        self.bucket_worker = BucketWorker(
            ClusterSettings(),
            AgentSettings(slots=2, bucket_buffer=4),
            owner.master, owner.store, owner.ownership, handlers, SystemClock(), telemetry, EventLog(),
            owner.agent_id.hex()[-12:],
        )  # fmt: skip
        self.ownership_check = OwnershipCheck(
            owner.ownership, owner.master.buckets, owner.store, self.bucket_worker, telemetry, EventLog()
        )
        self.bucket_worker.in_flight_writer._within_seconds = 0.0
        self.telemetry = telemetry

    async def submit(self, *entries: bytes) -> ReplyStatus:
        return (await self.owner.store.submit(self.owner.fence.bucket_id, entries, **HIGH_WATER)).status

    async def freeze(self, *, tell_store: bool = True) -> None:
        [bucket] = await self.owner.master.buckets.freeze([self.owner.fence.bucket_id], None, "test", "test")
        if tell_store:
            assert await self.owner.store.freeze(bucket.id, bucket.epoch, bucket.owner) is ReplyStatus.OK

    async def unfreeze(self) -> None:
        assert len(await self.owner.master.buckets.unfreeze([self.owner.fence.bucket_id], None, "test", "test")) == 1

    async def beat(self) -> None:
        """A renewal, and what follows from it."""
        self.ownership_check.renewed(await self.owner.master.members.renew(self.owner.agent_id, 600.0))
        await self.ownership_check.tick()


@asynccontextmanager
async def living(driven: DrivenCluster) -> AsyncIterator[Life]:
    """One that works until the block ends."""
    began.clear()
    gates.clear()
    gates.update({name: asyncio.Event() for name in ("first", "fails", "then")})
    made = Life(await driven.owner())
    running = asyncio.ensure_future(made.bucket_worker.run())
    made.bucket_worker.open(made.owned)
    yield made
    for gate in gates.values():
        gate.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await made.bucket_worker.aclose()


async def look_at_nothing(bucket_id: bytes) -> None:
    """There are no lists that memory does not know."""


async def nothing_lies_there(life: Life) -> None:
    """Every claimed list has been deleted."""
    await until(lambda: is_idle(life.bucket_worker) and life.bucket_worker.outcome_writer.acknowledger.idle)
    depth = (await life.owner.store.depths([life.owner.fence.bucket_id]))[0]
    assert depth is not None
    assert (depth.pending, depth.assigned, depth.claimed_lists, depth.kept) == (0, 0, 0, 0)


async def states(driven: DrivenCluster, ids: list[bytes]) -> dict[bytes, str]:
    rows = await driven.rows("SELECT id, state::text FROM job WHERE id = ANY ($1::uuid[])", [text(i) for i in ids])
    return {row["id"].bytes: row["state"] for row in rows}
