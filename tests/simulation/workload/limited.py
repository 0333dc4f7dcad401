"""Jobs with limits and ordering keys, and an operator who changes a limit: with the product's own ``Cluster``."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from jobmaster.client.cluster import Cluster
from jobmaster.handlers import Handlers, JobContext, Limit
from jobmaster.model.errors import JobMasterError
from jobmaster.model.flow.limit import LimitUse
from jobmaster_agents.state.limited_starts import ORDERING
from tests.simulation.checks.audit import Job
from tests.simulation.checks.limits import MOST
from tests.simulation.master.sim_master import SimMaster
from tests.simulation.runtime.hosts import SimClock
from tests.simulation.store.sim_store import SimStore
from tests.simulation.workload.clients import HANDLERS, SUBMITS_MAX, run_attempt

if TYPE_CHECKING:
    from tests.simulation.history import History

LIMITED = Handlers()
LIMITED.merge(HANDLERS)
POOL = Limit("pool", MOST["pool"], weight=lambda arguments: int(arguments["weight"]))
_JOBS = 14
_ORDERED = 4
_BURSTS, _OF_BURST, _BURST_EVERY = 3, 8, 3
"""Of so many histories one has bursts of light jobs, of which permits are lent."""


@LIMITED.job(name="pooled", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4, limit=POOL)
async def pooled(ctx: JobContext, weight: int) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@LIMITED.job(name="light", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4, limit=Limit("pool", MOST["pool"]))
async def light(ctx: JobContext) -> int:
    """It may start with a permit that was lent to its agent."""
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@LIMITED.job(
    name="borrowing", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4, limit=Limit("lent", MOST["lent"])
)
async def borrowing(ctx: JobContext) -> int:
    """Most of its starts are with lent permits: no heavier job has the limit."""
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@LIMITED.job(
    name="tenants", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4,
    limit=[Limit("tenant", MOST["tenant"], key="{tenant}"), Limit("paced", rate="40/s", burst=3)],
)  # fmt: skip
async def tenants(ctx: JobContext, tenant: str) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@LIMITED.job(name="ordered", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4)
async def ordered(ctx: JobContext) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


class LimitedJobs:
    """One process that hands them in.

    Args:
        chance: the stream of this workload.
    """

    def __init__(self, history: History, master: SimMaster, stores: dict[str, SimStore], chance: Random) -> None:
        self._history = history
        clock = SimClock(history.loop, 7.0)
        self._cluster = Cluster(history.settings, master, stores, handlers=LIMITED, clock=clock)
        self._chance = chance
        self._bursts = Random(f"bursts {history.seed}")

    async def run(self, seconds: float) -> None:
        """Hand in jobs for some time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_JOBS):
                group.create_task(self._one(seconds * self._chance.random()))
            for key in ("a", "b"):
                group.create_task(self._in_order(key, seconds))
            group.create_task(self._change(seconds))
            if self._bursts.random() < 1 / _BURST_EVERY:
                for _ in range(_BURSTS):
                    group.create_task(self._burst(seconds))

    async def _burst(self, seconds: float) -> None:
        chance = self._bursts
        await asyncio.sleep(seconds * chance.random())
        async with asyncio.TaskGroup() as group:
            for _ in range(_OF_BURST):
                job = self._new("limited")
                job.seconds = chance.choice((0.0, 0.02, 0.1))
                job.uses = (LimitUse("pool", "", 1),)
                group.create_task(self._submit(job, light, {}))

    async def _one(self, wait: float) -> None:
        chance = self._chance
        weight, tenant, is_pooled = chance.choice((1, 1, 2, 3)), chance.choice("xy"), chance.random() < 0.6
        await asyncio.sleep(wait)
        job = self._new("limited")
        if is_pooled:
            job.uses = (LimitUse("pool", "", weight),)
            await self._submit(job, pooled, {"weight": weight})
        else:
            job.uses = (LimitUse("tenant", tenant, 1),)
            await self._submit(job, tenants, {"tenant": tenant})

    async def _in_order(self, key: str, seconds: float) -> None:
        """Some jobs of one ordering key, each submitted when the one before was acknowledged."""
        before: list[bytes] = []
        for _ in range(_ORDERED):
            await asyncio.sleep(seconds / _ORDERED * self._chance.random() ** 2)
            job = self._new("ordered")
            job.uses = (LimitUse(ORDERING, key, 1),)
            job.earlier = tuple(before)
            if await self._submit(job, ordered, {}, ordering_key=key):
                before.append(job.id)

    async def _change(self, seconds: float) -> None:
        """An operator lowers the limit for some time."""
        limits = self._cluster.limits
        await asyncio.sleep(seconds * self._chance.random())
        for change in (lambda: limits.set("pool", 1, reason="less"), lambda: limits.reset("pool")):
            for _ in range(SUBMITS_MAX):
                try:
                    await change()
                except JobMasterError:
                    await asyncio.sleep(0.1 + 0.2 * self._chance.random())
                else:
                    break
            await asyncio.sleep(0.5 * seconds * self._chance.random())

    def _new(self, kind: str) -> Job:
        chance = self._chance
        job = Job(self._history.new_id(), kind)
        self._history.audit.jobs[job.id] = job
        job.seconds = chance.choice((0.0, 0.02, 0.2, 0.5))
        job.fails = 1 if chance.random() < 0.2 else 0
        return job

    async def _submit(self, job: Job, handler: Any, arguments: dict[str, Any], **options: Any) -> bool:
        """Sent again under the same id until there is an answer."""
        job.handler = LIMITED.of(handler).name  # type: ignore[union-attr]
        for _ in range(SUBMITS_MAX):
            try:
                receipt = await self._cluster.submit(handler, arguments, job_id=job.id, **options)
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * self._chance.random())
            else:
                self._history.audit.acknowledged(job, str(receipt.level))
                return True
        return False
