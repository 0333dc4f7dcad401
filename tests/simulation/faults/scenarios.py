"""Faults in an order that drawn faults rarely have: for guards that would be noticed in one history of thousands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from tests.simulation.faults.injector import operate
from tests.simulation.runtime.network import CallFault, Server

if TYPE_CHECKING:
    from tests.simulation.history import History

Scenario = Callable[["History"], Coroutine[None, None, None]]
_ROUNDS = 4
_ROUND_SECONDS, _CUT_SECONDS, _FROZEN_SECONDS = 0.2, 0.25, 0.2


async def claims_without_answers(history: History) -> None:
    """Some rounds of: the stores execute claims whose replies are lost, an operator freezes the buckets before the claims are
    repeated, and lets them go on later. The claimed lists are then known to the stores alone."""
    nemesis = history.nemesis
    stores: list[Server] = list(history.stores.values())
    for _ in range(_ROUNDS):
        await asyncio.sleep(_ROUND_SECONDS)
        cut = [host.process for host in history.hosts if host.process is not None and host.process.alive]
        for process in cut:
            nemesis.cut(process, stores, CallFault.LOST_REPLY)
        await asyncio.sleep(_CUT_SECONDS)
        tables = history.master.statements.tables
        frozen = sorted(bucket.id for bucket in tables.buckets.values() if bucket.state == "ACTIVE")
        await operate(history, "freeze", frozen)
        for process in cut:
            nemesis.mend(process)
        await asyncio.sleep(_FROZEN_SECONDS)
        await operate(history, "unfreeze", frozen)
