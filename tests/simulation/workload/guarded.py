"""Jobs whose handler needs a resource that is down for a while: with a circuit breaker that an operator opens and closes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from jobmaster.client.cluster import Cluster
from jobmaster.handlers import Handlers, JobContext
from jobmaster.handlers.flow.breaker import Breaker
from jobmaster.model.errors import JobMasterError
from tests.simulation.checks.audit import GUARDED, RESOURCE, Job
from tests.simulation.workload.clients import Down, run_attempt

if TYPE_CHECKING:
    from tests.simulation.history import History

GUARDED_EVERY = 6
"""Of so many histories one has such jobs."""
JOBS = 10
_SUBMITS_MAX = 12
BREAKER = Breaker(RESOURCE, failures=0.5, window=1.0, min_calls=3, open_for=0.25, half_open=2, on=Down)
HANDLERS = Handlers()


@HANDLERS.job(name=GUARDED, timeout=20, max_attempts=100, backoff=0.1, backoff_max=0.2, breaker=BREAKER)
async def guarded(ctx: JobContext) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


def with_breaker(handlers: Handlers) -> Handlers:
    """These handlers, and the one with the breaker."""
    both = Handlers()
    both.merge(handlers)
    both.merge(HANDLERS)
    return both


class Guarded:
    """One process that submits such jobs, and takes the resource down.

    Args:
        chance: the stream of the workload.
    """

    def __init__(self, history: History, cluster: Cluster, chance: Random) -> None:
        self._history = history
        self._cluster = cluster
        self._chance = chance

    async def run(self, seconds: float) -> None:
        """Submit jobs for some time; the resource is up again at its end."""
        async with asyncio.TaskGroup() as group:
            for _ in range(JOBS):
                group.create_task(self._submit(0.6 * seconds * self._chance.random()), name="guarded")
            group.create_task(self._take_down(seconds), name="resource")
            group.create_task(self._operate(seconds), name="breaker operator")

    async def _take_down(self, seconds: float) -> None:
        history = self._history
        history.resource_is_down = True
        await asyncio.sleep(seconds * (0.3 + 0.6 * self._chance.random()))
        history.resource_is_down = False

    async def _operate(self, seconds: float) -> None:
        """A breaker that has no end is closed, however long the master is away."""
        for opens in (True, False):
            await asyncio.sleep(0.4 * seconds * self._chance.random())
            if opens and self._chance.random() < 0.7:
                return
            while True:
                try:
                    if opens:
                        await self._cluster.breakers.open(RESOURCE)
                    else:
                        await self._cluster.breakers.close(RESOURCE)
                    break
                except JobMasterError:
                    await asyncio.sleep(0.1)

    async def _submit(self, wait: float) -> None:
        history, chance = self._history, self._chance
        await asyncio.sleep(wait)
        job = Job(history.new_id(), GUARDED, seconds=chance.choice((0.0, 0.02, 0.1, 0.5)))
        history.audit.jobs[job.id] = job
        for _ in range(_SUBMITS_MAX):
            try:
                receipt = await self._cluster.submit(guarded, {}, job_id=job.id)
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * chance.random())
            else:
                history.audit.acknowledged(job, str(receipt.level))
                return
