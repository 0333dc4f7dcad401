"""While this agent leads: open breakers become half-open when their time is over, and jobs are chosen as their trials.

While all breakers are closed the leader makes no statement: opening one changes the version of the pauses, which every
renewal returns. The clock is that of the database, and the choice is a compare-and-set, so a change of the leader, or two
agents that both take themselves for it, delay a trial at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.clock import Clock
from jobmaster.ports import LeaderBreakers
from jobmaster.telemetry import Telemetry
from jobmaster_agents.breakers.reporter import log_changes
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.maintenance_runner import MaintenanceTask

LOOK_SECONDS = 1.0
"""Time between two looks while a breaker is half-open."""
LOOK_JOBS = 5_000
"""Of each lane and priority the oldest due jobs that a look reads."""
DEEP_LOOK_SECONDS = 30.0
DEEP_LOOK_JOBS = 1_000_000
"""At this interval a look reads more of them: the job of a breaker may stand behind many that cannot start."""
IDLE_SECONDS = 3600.0
FORGET_EVERY_SECONDS = 3600.0


class BreakerTrials:
    """Periodic task of the leader.

    Args:
        leads: returns whether this agent leads.
    """

    name = "breaker-trials"

    def __init__(
        self,
        breakers: LeaderBreakers,
        leads: Callable[[], bool],
        clock: Clock,
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._breakers = breakers
        self._leads = leads
        self._telemetry = telemetry
        self._log = log
        self._now = clock.boottime
        self._look = True
        self._deep_at = clock.boottime() + DEEP_LOOK_SECONDS
        self.kicked = asyncio.Event()

    def tasks(self) -> list[MaintenanceTask]:
        """The maintenance task that deletes old results."""
        return [MaintenanceTask("breakers", FORGET_EVERY_SECONDS, self._forget)]

    async def _forget(self) -> None:
        await self._breakers.forget()

    def changed(self) -> None:
        """The version of the pauses has changed, or this agent has become the leader."""
        self._look = True
        self.kicked.set()

    async def tick(self) -> float:
        """Look at the breakers that are not closed; seconds until the next look."""
        if not self._leads():
            self._look = True
            return IDLE_SECONDS
        if not self._look:
            return IDLE_SECONDS
        self._look = False
        try:
            return await self._look_at()
        except BaseException:
            self._look = True
            raise

    async def _look_at(self) -> float:
        log_changes(await self._breakers.half_open(), self._telemetry, self._log)
        found = await self._breakers.choose_trials(self._depth())
        idle = [each.name for each in found if each.left_seconds is None and not each.waits]
        if idle:
            log_changes(await self._breakers.evaluate(idle, nobody_waits=True), self._telemetry, self._log)
        if not found:
            return IDLE_SECONDS
        self._look = True
        return min((max(each.left_seconds, 0.05) if each.left_seconds is not None else LOOK_SECONDS) for each in found)

    def _depth(self) -> int:
        if (now := self._now()) < self._deep_at:
            return LOOK_JOBS
        self._deep_at = now + DEEP_LOOK_SECONDS
        return DEEP_LOOK_JOBS
