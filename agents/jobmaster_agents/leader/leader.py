"""The coordinator's office: one agent keeps house for the cluster. It is never on the path of a running job.

One statement a second keeps the office, finds lanes and priorities whose HELD jobs come due, and sees whether some agent's
lease is over. Owners of matching buckets are told by a hint through their store (two per group, in turn), so nobody polls
the master for due jobs.

Only that statement, and the read of the bucket map, are on the path that keeps the office. Hints go out by a duty of their
own (``due_notifier``), and so do the rare chores (``MaintenanceTasks``): one at a time and one a second at most, which
bounds the load. A store that does not answer, or a chore that takes long, costs no office.

The office has an epoch. Losing it costs nothing: every chore is safe when two agents do it. An agent of greater weight that
has been there for longer than its lease gets it from a lighter holder, by name, at the end of a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.model.job import Priority
from jobmaster.ports import Tended
from jobmaster.rules.lease import Standing
from jobmaster.settings.model import AgentMode, Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.due_notifier import DueNotifier, Group
from jobmaster_agents.state.ownership import Ownership

IDLE_SECONDS = 60.0
AGAIN = True
"""A chore that answers so has more to do: it comes again with the next tick."""


class LeaderMaster(Protocol):
    """Where the office is held."""

    async def lead(self, agent_id: bytes, weight: int, lease_seconds: float) -> int | None: ...

    async def resign(self, agent_id: bytes, epoch: int) -> None: ...

    async def hand_over(self, agent_id: bytes, weight: int, epoch: int) -> bytes | None: ...

    async def tend(self, agent_id: bytes, weight: int, lease_seconds: float, horizon_seconds: float) -> Tended: ...


@dataclass(slots=True)
class MaintenanceTask:
    """Something the coordinator does now and then."""

    name: str
    every_seconds: float
    run: Callable[[], Awaitable[bool | None]]
    next_at: float = 0.0


def may_lead(mode: AgentMode, weight: int) -> bool:
    """``executor`` and ``drain`` never lead, weight 0 neither."""
    return weight > 0 and mode in (AgentMode.FULL, AgentMode.COORDINATOR)


class MaintenanceTasks:
    """The duty that does the chores, one at a time, while this agent leads.

    Args:
        leads: whether it does.
        pace_seconds: from the beginning of one chore to that of the next, at least.
    """

    name = "chores"

    def __init__(
        self, chores: Sequence[MaintenanceTask], leads: Callable[[], bool], clock: Clock, pace_seconds: float
    ) -> None:
        self.all = list(chores)
        self._leads = leads
        self._now = clock.boottime
        self._pace_seconds = pace_seconds
        self.kicked = asyncio.Event()

    async def tick(self) -> float:
        """Do the one that is most overdue."""
        if not self._leads() or not self.all:
            return IDLE_SECONDS
        now = self._now()
        chore = min(self.all, key=lambda each: each.next_at)
        if chore.next_at <= now:
            chore.next_at = now + chore.every_seconds  # set first: a chore that fails must not take every turn
            if await chore.run() is AGAIN:
                chore.next_at = now
        soonest = min(each.next_at for each in self.all)
        return max(soonest - self._now(), now + self._pace_seconds - self._now(), 0.0)


class Leader:
    """The duty that holds the office, or waits for it to fall vacant. Its ``chores`` are a second duty.

    Args:
        on_overdue: called when some agent's lease is over (somebody should judge).
    """

    name = "coordination"

    def __init__(
        self,
        ownership: Ownership,
        master: LeaderMaster,
        due_notifier: DueNotifier,
        chores: Sequence[MaintenanceTask],
        leases: Leases,
        clock: Clock,
        on_overdue: Callable[[], None],
        telemetry: Telemetry,
        log: EventLog,
        *,
        weight: int,
        horizon_seconds: float,
    ) -> None:
        self._ownership = ownership
        self._master = master
        self._due_notifier = due_notifier
        self.chores = MaintenanceTasks(chores, lambda: self._epoch is not None, clock, leases.coordinator_renew_seconds)
        self._leases = leases
        self._now = clock.boottime
        self._on_overdue = on_overdue
        self._telemetry = telemetry
        self._log = log
        self._weight = weight
        self._horizon_seconds = horizon_seconds
        self._epoch: int | None = None
        self._resigned = False
        self._vacant = True  # at the start of a cluster nobody should wait for a renewal to learn it
        self._unserved: set[Group] = set()
        self.kicked = asyncio.Event()
        telemetry.read_from("coordinating", lambda: int(self._epoch is not None))

    def may_be_vacant(self) -> None:
        """An agent was certified dead: if it led, its office need not wait for its lease."""
        if self._epoch is None and not self._resigned:
            self._vacant = True
            self.kicked.set()

    @property
    def epoch(self) -> int | None:
        """Epoch of the office while it is held."""
        return self._epoch

    def saw_coordinator(self, coordinator: bytes | None) -> None:
        """A renewal said who leads; nobody, or this agent by an answer that was lost, means: try."""
        if coordinator in (None, self._ownership.agent_id):
            self.may_be_vacant()

    async def tick(self) -> float:
        """Hold the office and keep house, or wait."""
        if self._resigned:
            return IDLE_SECONDS
        if self._ownership.standing(self._now()) is not Standing.TRUSTED:
            self._drop("its own lease is in doubt")
            return self._leases.coordinator_renew_seconds
        if self._epoch is None:
            if not self._vacant:
                return IDLE_SECONDS
            return 0.0 if await self._apply() else IDLE_SECONDS
        return await self._keep_house()

    async def resign(self) -> None:
        """Give the office back for good, so that a successor need not wait for its lease."""
        epoch, self._epoch = self._epoch, None
        self._resigned = True
        if epoch is not None:
            await self._master.resign(self._ownership.agent_id, epoch)
            self._log.info(Event.COORDINATOR_RESIGNED, {"epoch": epoch})

    # ------------------------------------------------------------ the office

    async def _apply(self) -> bool:
        self._vacant = False
        self._epoch = await self._master.lead(
            self._ownership.agent_id, self._weight, self._leases.coordinator_lease_seconds
        )
        if self._resigned:
            await self.resign()  # while the question was under way
        if self._epoch is not None:
            self._telemetry.elections_won += 1
            self._log.info(Event.COORDINATOR_ELECTED, {"epoch": self._epoch, "weight": self._weight})
            self.chores.kicked.set()
        return self._epoch is not None

    def _drop(self, why: str) -> None:
        if self._epoch is not None:
            self._log.warning(Event.COORDINATOR_SUPERSEDED, {"epoch": self._epoch, "reason": why})
            self._epoch = None
            self._vacant = True

    async def _keep_house(self) -> float:
        sent = self._now()
        tended = await self._master.tend(
            self._ownership.agent_id, self._weight, self._leases.coordinator_lease_seconds, self._horizon_seconds
        )
        if self._resigned:
            return IDLE_SECONDS  # while the question was under way
        if tended.epoch != self._epoch:
            self._drop(
                "another agent holds the office" if tended.epoch is None else "the office changed hands meanwhile"
            )
            self._vacant = tended.epoch is not None
            return 0.0 if self._vacant else IDLE_SECONDS
        if tended.overdue:
            self._on_overdue()
        self._note_unserved(await self._due_notifier.tell((group.lane, group.priority) for group in tended.due))
        if tended.heavier and self._epoch is not None and await self._hand_over(self._epoch):
            return IDLE_SECONDS
        return max(sent + self._leases.coordinator_renew_seconds - self._now(), 0.0)

    async def _hand_over(self, epoch: int) -> bool:
        """The office goes to an heir by name, at the end of a tick; true when it has gone.

        It is given up here before the master is asked: should the answer be lost, the next renewal names its holder.
        """
        self._epoch = None
        heir = await self._master.hand_over(self._ownership.agent_id, self._weight, epoch)
        if heir is None and not self._resigned:
            self._epoch = epoch  # nobody is heavier any more; the next tick shows whether it is still held
            self.chores.kicked.set()
            return False
        self._log.info(Event.COORDINATOR_RESIGNED, {"epoch": epoch, "heir": heir})
        return True

    def _note_unserved(self, unserved: set[Group]) -> None:
        for lane, priority in sorted(unserved - self._unserved):
            fields = {"lane": lane, "priority": Priority(priority).label}
            self._log.warning(
                Event.LANE_UNSERVED, {**fields, "reason": "jobs are due and no ACTIVE bucket serves them"}
            )
        self._unserved = unserved
        self._telemetry.groups_unserved = len(unserved)
