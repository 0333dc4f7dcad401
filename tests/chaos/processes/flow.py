"""The producer's ways into flow: limits, ordering keys, signals, batches, workflows, unique keys and a schedule."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from jobmaster.client.bulk import BulkFailed
from jobmaster.client.cluster import Cluster
from jobmaster.client.signals.wait import signal
from jobmaster.client.workflows.definition import chain, step
from jobmaster.clock import new_id
from jobmaster.handlers import Unique, call
from jobmaster.model.errors import JobMasterError
from tests.chaos.processes import flow_jobs, jobs
from tests.chaos.processes.witness import Phase, WitnessLine

WAIT_SECONDS = 30.0
_KEEP_SECONDS = 120.0
_UNIQUE_SECONDS = 3600.0
_ABANDON_SECONDS = 15.0
_TRIES = 8
_BATCH, _LIMITED, _LENT, _ORDERED, _SIGNALS, _CHAINS, _RACERS = 40, 20, 80, 4, 4, 2, 3
_FIRE_SECONDS = 2

Submit = Callable[..., Awaitable[bytes | None]]
"""Value, handler, arguments, options; the id of an acknowledged job."""
_Answer = TypeVar("_Answer")


class FlowWays:
    """Each way is a coroutine function without arguments.

    Args:
        values: fresh values, written down as attempted at a level.
        submit: submits one job again and again, and writes the answer down.
        write: writes a line of the witness.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        values: Callable[[int, str], range],
        submit: Submit,
        write: Callable[[WitnessLine], None],
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._values = values
        self._submit = submit
        self._write = write

    def ways(self) -> list[tuple[float, int, Callable[[], Coroutine[Any, Any, None]]]]:
        """Share of all jobs, jobs of one call, and the way."""
        return [
            (0.01, _LIMITED, self._limited),
            (0.02, _LENT, self._lent),
            (0.004, _ORDERED, self._ordered),
            (0.004, _SIGNALS, self._signalled),
            (0.016, _BATCH, self._batch),
            (0.003, _CHAINS * 2, self._chains),
            (0.001, _RACERS, self._unique),
        ]

    async def _limited(self) -> None:
        await self._at_once(_LIMITED, flow_jobs.limited)

    async def _lent(self) -> None:
        """So many that each agent has more of them than it asks for one by one."""
        await self._at_once(_LENT, flow_jobs.lent)

    async def _at_once(self, count: int, handler: Any) -> None:
        await asyncio.gather(
            *(
                self._submit(value, handler, {"value": value}, durability="store", job_id=new_id())
                for value in self._values(count, "store")
            )
        )

    async def _ordered(self) -> None:
        """One after the other, each when the one before it was acknowledged; the key is not used again."""
        values, acknowledged = self._values(_ORDERED, "master"), []
        for value in values:
            options: dict[str, Any] = {"ordering_key": f"key {values[0]}", "job_id": new_id()}
            job = await self._submit(value, flow_jobs.ordered, {"value": value}, **options)
            if job is None:
                break
            acknowledged.append(job.hex())
        self._write(WitnessLine(phase=Phase.ORDERED, jobs=acknowledged))

    async def _signalled(self) -> None:
        values = self._values(_SIGNALS, "master")
        await asyncio.gather(*(self._signal(value) for value in values))

    async def _signal(self, value: int) -> None:
        """A job and its signal, which cross each other."""
        key, began, signal_id = f"chaos:{value}", time.monotonic(), new_id()
        wait_for = signal(key, timeout=WAIT_SECONDS, on_timeout="run")

        async def send() -> object:
            return await self._cluster.signals.send(key, value, keep_for=_KEEP_SECONDS, signal_id=signal_id)

        job, sent = await asyncio.gather(
            self._submit(value, flow_jobs.signalled, {"value": value}, wait_for=wait_for, job_id=new_id()),
            self._answered(send),
        )
        # A job that had to be put off until then may have run without it.
        if job is not None and sent is not None and time.monotonic() - began < WAIT_SECONDS - 1:
            self._write(WitnessLine(phase=Phase.SIGNALLED, job=job.hex(), value=value))

    async def _batch(self) -> None:
        values = self._values(_BATCH, "master")
        done = call(flow_jobs.callback, values[0])
        try:
            async with self._cluster.batch("chaos", on_complete=done, abandon_after=_ABANDON_SECONDS) as batch:
                items: list[Any] = [(jobs.quick, {"value": value}) for value in values]
                await batch.submit_many(items, durability="master", priority=self._rng.randint(1, 5))
                size = batch.submitted
        except (JobMasterError, BulkFailed):
            return  # it is cancelled, or abandoned after a while
        self._write(WitnessLine(phase=Phase.BATCH, job=batch.id.hex, value=values[0], token=size))

    async def _chains(self) -> None:
        """One that succeeds, and one whose last step fails, so that its first one is undone."""
        one, other = self._values(_CHAINS, "master")
        paid = step(call(flow_jobs.charge, other), undo=call(flow_jobs.refund, other))
        await asyncio.gather(
            self._chain(one, "SUCCEEDED", chain(call(flow_jobs.charge, one), call(flow_jobs.ship, one))),
            self._chain(other, "FAILED", chain(paid, call(flow_jobs.declined, other))),
        )

    async def _chain(self, value: int, state: str, flow: Any) -> None:
        workflow_id = self._cluster.workflows.new_id()

        async def start() -> object:
            return await self._cluster.workflows.start("chaos", flow, workflow_id=workflow_id)

        if await self._answered(start) is not None:
            self._write(WitnessLine(phase=Phase.WORKFLOW, job=workflow_id.hex, value=value, why=state))

    async def _unique(self) -> None:
        """Several submits of one key at the same moment: all are answered with one job."""
        value = self._values(1, "master")[0]
        key = Unique(key=str(value), window=_UNIQUE_SECONDS)
        found = await asyncio.gather(
            *(
                self._submit(value, flow_jobs.unique, {"value": value}, unique=key, job_id=new_id())
                for _ in range(_RACERS)
            )
        )
        self._write(WitnessLine(phase=Phase.UNIQUE, jobs=[job.hex() for job in found if job is not None], value=value))

    async def fire_until(self, name: str, stop: asyncio.Event) -> None:
        """A schedule of this producer, in place of that of the one before it, until the stop."""
        value = self._values(1, "master")[0]

        async def put() -> object:
            every = timedelta(seconds=_FIRE_SECONDS)
            return await self._cluster.schedules.put(name, every, call(flow_jobs.fire, value))

        async def remove() -> object:
            await self._cluster.schedules.remove(name)
            return True

        await self._answered(put)
        await stop.wait()
        await self._answered(remove)

    async def _answered(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer | None:
        """The answer of a call that may be sent again; ``None``: none came."""
        for attempt in range(_TRIES):
            with contextlib.suppress(JobMasterError):
                return await ask()
            await asyncio.sleep(0.2 * 2 ** min(attempt, 5) * self._rng.random())
        return None
