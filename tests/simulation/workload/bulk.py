"""Bulk operations in a history: asked for by a client, worked on by whichever agent leads, and cancelled half-way."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from jobmaster.client.cluster import Cluster
from jobmaster.model.errors import JobMasterError
from jobmaster.model.flow.bulk_operation import BulkView
from tests.simulation.checks.audit import Job
from tests.simulation.workload.clients import plain

if TYPE_CHECKING:
    from tests.simulation.history import History

JOBS = 12
TAG, WAITS = "bulk", "waits"
"""Tags of all of its jobs, and of those that do not fail."""
_SUBMITS_MAX = 12
_KINDS = ("retry", "reschedule", "retry", "cancel", "reschedule")


class Bulk:
    """One process that submits jobs, and asks for operations on them.

    Args:
        chance: the stream of the workload.
    """

    def __init__(self, history: History, cluster: Cluster, chance: Random) -> None:
        self._history = history
        self._cluster = cluster
        self._chance = chance

    async def run(self, seconds: float) -> None:
        """Jobs, most of which fail at once, and operations at the same time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(JOBS):
                group.create_task(self._submit(0.4 * seconds * self._chance.random()), name="bulk job")
            for number, kind in enumerate(_KINDS):
                wait = seconds * (0.2 + 0.7 * (number + self._chance.random()) / len(_KINDS))
                group.create_task(self._operate(kind, wait), name="bulk")

    async def _submit(self, wait: float) -> None:
        history, chance = self._history, self._chance
        await asyncio.sleep(wait)
        fails = chance.random() < 0.6
        job = Job(history.new_id(), "failing" if fails else "batched")
        job.cancelled = not fails  # an operation may cancel it
        history.audit.jobs[job.id] = job
        options: dict[str, Any] = {"tags": [TAG]}
        if not fails:
            options = {"tags": [TAG, WAITS], "after": 1.5 + chance.random()}
        for _ in range(_SUBMITS_MAX):
            try:
                receipt = await self._cluster.submit(plain, {}, job_id=job.id, **options)
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * chance.random())
            else:
                history.audit.acknowledged(job, str(receipt.level))
                return

    async def _operate(self, kind: Any, wait: float) -> None:
        """An operation; some are cancelled soon after."""
        chance, bulk = self._chance, self._cluster.bulk
        await asyncio.sleep(wait)
        change: Any = {"after": 0.2 * chance.random()} if kind == "reschedule" else None
        view: BulkView | None = None
        for _ in range(_SUBMITS_MAX):
            try:
                if view is None:
                    view = await bulk.start(kind, change=change, tag=WAITS if kind == "cancel" else TAG)
                if chance.random() < 0.3:
                    await asyncio.sleep(0.2 * chance.random())
                    await bulk.cancel(view)
                return
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * chance.random())


def unfinished_bulk(history: History) -> list[str]:
    """Operations that have not ended."""
    rows = history.master.statements.tables.bulk.values()
    return [f"bulk {row.kind} is still {row.state}" for row in rows if row.goes_on]
