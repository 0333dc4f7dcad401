"""Faults in an order that drawn faults rarely have: for guards that would be noticed in one history of thousands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jobmaster.model.errors import JobMasterError
from jobmaster.ports import LeaderBreakers
from jobmaster.settings.model import ClusterSettings, ScheduleSettings
from tests.simulation.checks.audit import RESOURCE
from tests.simulation.faults.injector import operate
from tests.simulation.runtime.hosts import Host
from tests.simulation.runtime.network import CallFault, Server

if TYPE_CHECKING:
    from tests.simulation.history import History

Scenario = Callable[["History"], Coroutine[None, None, None]]
_ROUNDS = 4
_RESTART_LOOKS = 20
_LOOKS, _RIVALS = 200, 8
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


async def orders(history: History) -> None:
    """No further fault: every history has workflows."""


async def deploy_taken_back(history: History) -> None:
    """An agent starts with a newer definition of a schedule, one with the older definition restarts while that one lives, and
    then the newer program is taken back."""
    older, newer = (_declaring(history.settings, every) for every in ("1h", "2h"))
    one, two, _ = history.hosts
    for settings, host in ((older, one), (newer, two), (older, one), (older, two)):
        history.settings = settings
        await _restarted(host)
        await asyncio.sleep(0.1)


async def jobs_and_signals_that_meet(history: History) -> None:
    """Jobs begin to wait for signals that are sent at the same moment."""
    history.signallers.start()


async def rival_leaders(history: History) -> None:
    """Beside the leader more agents take themselves for it, all the time that the resource of a breaker is down."""
    await asyncio.gather(*(_look(history.open_master().breakers) for _ in range(_RIVALS)))


async def _look(breakers: LeaderBreakers) -> None:
    for _ in range(_LOOKS):
        with contextlib.suppress(JobMasterError):
            await breakers.half_open()
            for _ in range(2):
                await breakers.choose_trials(100)
                await breakers.evaluate([RESOURCE])


def _declaring(settings: ClusterSettings, every: str) -> ClusterSettings:
    """The schedule does not fire as long as any history lasts."""
    schedule = ScheduleSettings(handler="plain", every=every, start="2040-01-01T00:00:00Z")
    return replace(settings, schedules={"declared": schedule})


async def _restarted(host: Host) -> None:
    """The agent leaves in order, if it serves, and the next one of its machine is up; or the time for that is over."""
    starts = host.starts
    if host.lifecycle is not None:
        host.lifecycle.reason = "the scenario asks"
        host.lifecycle.leave.set()
    for _ in range(_RESTART_LOOKS):
        if host.starts > starts and host.serving:
            return
        await asyncio.sleep(0.05)
