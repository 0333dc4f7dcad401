"""Workflows in a history: started by a client, some of them cancelled or retried, continued by the master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from jobmaster.client.cluster import Cluster
from jobmaster.client.workflows.definition import Flow, Step, chain, group, previous, result_of, step
from jobmaster.handlers import call
from jobmaster.model.errors import Conflict, JobMasterError, NotFound
from jobmaster.model.ids import text
from tests.simulation.master.tables import FINAL

if TYPE_CHECKING:
    from tests.simulation.history import History

ORDERS_EVERY = 7
"""Every seventh history has workflows; the others are as they were without them."""
ORDERLY = ("orders",)
"""Scenarios whose histories all have workflows."""
_ORDERS = 4
_TRIES = 12


class Orders:
    """One process that starts workflows.

    Args:
        chance: the stream of these workflows.
    """

    def __init__(self, history: History, cluster: Cluster, chance: Random, new_id: Callable[[], bytes]) -> None:
        self._audit = history.audit
        self._cluster = cluster
        self._chance = chance
        self._new_id = new_id

    async def run(self, seconds: float) -> None:
        """Start some, and change one's mind about a few of them."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(_ORDERS):
                tasks.create_task(self._life(number, seconds * 0.6 * self._chance.random()), name="order")

    async def _life(self, number: int, wait: float) -> None:
        of = UUID(bytes=self._new_id()[:12] + bytes(4))
        flow, mind = _FLOWS[number](), self._chance.random()
        await asyncio.sleep(wait)
        if not await self._until_answered(lambda: self._cluster.workflows.start("order", flow, workflow_id=of)):
            return
        self._audit.acknowledged_workflows.add(of.bytes)
        await asyncio.sleep(0.6 * self._chance.random() ** 2)
        if mind < 0.4:
            await self._until_answered(lambda: self._cluster.workflows.cancel(of))
        elif mind < 0.7:
            await asyncio.sleep(0.5)
            await self._until_answered(lambda: self._cluster.workflows.retry(of))

    async def _until_answered(self, call_: Callable[[], Awaitable[object]]) -> bool:
        for _ in range(_TRIES):
            try:
                await call_()
            except (Conflict, NotFound) as error:
                self._audit.hits[f"workflow: {type(error).__name__}"] += 1
                return False
            except JobMasterError:
                await asyncio.sleep(0.05 + 0.3 * self._chance.random())
            else:
                return True
        return False


def _quick(name: str, before: object = None, undo: bool = False) -> Step[int]:
    # By the name of the handler: its module imports this one's neighbours.
    return step(call("step", before=before), name=name, undo=call("step", before=previous) if undo else None)


def _joined() -> Flow:
    """Fan-out and fan-in, and results that go from step to step."""
    first = _quick("first")
    return chain(
        first, group(*(_quick(f"part {part}", result_of(first)) for part in range(4))), _quick("join", previous),
        _quick("last"),
    )  # fmt: skip


def _long() -> Flow:
    return chain(*(_quick(f"link {number}") for number in range(5)))


def _undone() -> Flow:
    """A step fails, and what was done before it is undone."""
    return chain(
        _quick("one", undo=True), group(_quick("two", undo=True), step(call("step"), name="slow")), _quick("fails"),
        _quick("never"),
    ).on_failure(chain(_quick("alert"), _quick("report")))  # fmt: skip


def _slow() -> Flow:
    """Mostly cancelled while its steps run or wait."""
    return chain(
        _quick("begin", undo=True), group(*(_quick(f"slow {part}") for part in range(3))), _quick("end")
    ).at_end(_quick("tidy up"))  # fmt: skip


_FLOWS = (_joined, _undone, _slow, _long)


def unfinished(history: History) -> list[str]:
    """Workflows that have not ended, or not as their jobs have."""
    tables, audit = history.master.statements.tables, history.audit
    wrong = [
        f"workflow {text(of)} is lost" for of in sorted(audit.acknowledged_workflows - audit.forgotten_workflows)
        if of not in tables.workflows
    ]  # fmt: skip
    for of, row in tables.workflows.items():
        if row.state not in FINAL:
            wrong.append(f"workflow {text(of)} is still {row.state}")
        for one in tables.workflow_steps[of].values():
            job = tables.jobs.get(one.job_id) if one.job_id is not None else None
            if one.state in ("PENDING", "STARTED"):
                wrong.append(f"step {one.name} of {text(of)} is still {one.state}")
            elif one.state in FINAL and job is not None and not one.error and job.state != one.state:
                wrong.append(f"step {one.name} of {text(of)} is {one.state}, and its job {job.state}")
    return wrong
