"""Programs that work under one lock and run actions once, and an operator who releases it: with the product's own code."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from jobmaster.client.locks import once
from jobmaster.client.locks.held_lock import HeldLock
from jobmaster.client.locks.lock import Lock
from jobmaster.client.locks.options import LockOptions
from jobmaster.handlers.once import OnceAction
from jobmaster.model.errors import JobMasterError
from jobmaster.ports import Locks
from tests.simulation.checks.audit import LOCK
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.master.sim_master import SimMaster
from tests.simulation.runtime.event_loop import Process
from tests.simulation.runtime.hosts import SimClock
from tests.simulation.runtime.network import NO_PROCESS, Network

if TYPE_CHECKING:
    from tests.simulation.history import History

TTL_SECONDS = 0.5
VERSION_SECONDS = 0.7
"""Another version of the action is deployed after each of these spans."""
_FAILURES_SHARE = 0.15
_STEPS_MAX = 8
_PAUSE_SHARE, _KILL_SHARE = 0.06, 0.02


class ActionFailed(Exception):
    """An action that is meant to fail."""


class Lockers:
    """Two programs at a time; one that is killed is replaced.

    Args:
        chance: the stream of these programs.
    """

    def __init__(self, history: History, chance: Random, seconds: float) -> None:
        self._history = history
        self._chance = chance
        self._ends = history.loop.now + seconds
        self._started = 0
        self._nemesis = Nemesis(
            history.loop, history.trace, chance, faultless=history.faultless, on_crash=lambda process: None
        )
        """One of their own: the faults of agents and clients are those that they would have without locks."""

    def start(self) -> None:
        """Two programs and an operator begin."""
        self._nemesis.quiet = False
        for _ in range(2):
            self._spawn()
        self._history.loop.spawn(Process("operator", self._history), self._release())

    def _spawn(self) -> None:
        self._started += 1
        process = Process(f"locker{self._started}", self._history)
        self._history.loop.spawn(process, self._life(process, 50.0 * self._started))

    def _locks(self) -> Locks:
        history = self._history
        return SimMaster(history.master, Network(history.master, self._nemesis, history.trace)).locks

    async def _life(self, process: Process, boot: float) -> None:
        history, chance = self._history, self._chance
        locks, clock = self._locks(), SimClock(history.loop, boot)
        while history.loop.now < self._ends:
            try:
                async with Lock(HeldLock(locks, LockOptions(LOCK, process.name, TTL_SECONDS, 1.0), clock)) as lock:
                    history.audit.lock_taken(lock.fence)
                    for _ in range(chance.randint(1, _STEPS_MAX)):
                        await asyncio.sleep(0.15 * chance.random())
                        await self._disturb(process)
                        lock.check()
                        history.audit.works_under_lock(lock.fence, TTL_SECONDS)
            except JobMasterError as error:
                history.audit.hits[f"lock: {type(error).__name__}"] += 1
            await self._run_once(process, locks, clock)
            await asyncio.sleep(0.1 * chance.random())
        self._nemesis.heal()

    async def _run_once(self, process: Process, locks: Locks, clock: SimClock) -> None:
        """Run the present version of the action, unless it has been done."""
        history, chance = self._history, self._chance
        version = f"{int(history.loop.now / VERSION_SECONDS)} {history.audit.failovers}"

        async def load() -> None:
            history.audit.action_begins(version)
            for _ in range(chance.randint(1, 3)):
                await asyncio.sleep(0.1 * chance.random())
                await self._disturb(process)
            if chance.random() < _FAILURES_SHARE:
                raise ActionFailed

        try:
            done_here = await once.run_once(locks, clock, OnceAction("load", version, load), wait_seconds=1.0)
        except (JobMasterError, ActionFailed) as error:
            history.audit.hits[f"once: {type(error).__name__}"] += 1
        else:
            history.audit.action_done(version, here=done_here)

    async def _disturb(self, process: Process) -> None:
        """The program stands still, or dies, under the lock."""
        history, draw = self._history, self._chance.random()
        if history.faultless or history.loop.now > self._ends or draw > _PAUSE_SHARE + _KILL_SHARE:
            return
        if draw < _PAUSE_SHARE:
            history.loop.halt(process, 0.1 + 1.5 * self._chance.random())
            await asyncio.sleep(0)
        else:
            history.loop.kill(process)
            history.loop.call_later(0.05, self._spawn, context=NO_PROCESS)
            await history.loop.create_future()

    async def _release(self) -> None:
        await asyncio.sleep(self._chance.random() * 2.0)
        if not self._history.faultless:
            self._history.audit.lock_revoked = True
            try:
                await self._locks().revoke(LOCK, "operator")
            except JobMasterError:
                return
