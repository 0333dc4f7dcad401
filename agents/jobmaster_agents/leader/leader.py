"""Leader election: one agent at a time holds the leader's lease. The leader is never on the path of a running job.

One statement a second renews the leader's lease, finds lanes and priorities whose HELD jobs come due, and checks whether the
lease of some agent is over. Owners of matching buckets get a hint through their store (two per group, in turn), so no agent
polls the master for due jobs.

Only that statement and the read of the bucket map are on the path of the renewal. Hints are sent by a periodic task of their
own (``due_notifier``). So are the maintenance tasks (``maintenance_runner``): one at a time and one a second at most, which
bounds the load. A silent store or a long maintenance task never costs the leader its lease.

The leader's lease has an epoch. Losing it is harmless: every maintenance task is safe when two agents run it. A leader hands
over at the end of a tick to an agent of greater weight that has been a member for longer than its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobmaster.clock import Clock
from jobmaster.model.job import Priority
from jobmaster.ports import Leadership
from jobmaster.rules.lease import LeaseStatus
from jobmaster.settings.model import AgentMode, Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.leader.due_notifier import DueNotifier, Group
from jobmaster_agents.leader.maintenance_runner import (
    BATCHES,
    IDLE_SECONDS,
    LATE_JOBS,
    SIGNALS,
    MaintenanceTask,
    MaintenanceTasks,
)
from jobmaster_agents.state.ownership import Ownership


def may_lead(mode: AgentMode, weight: int) -> bool:
    """False for the modes ``execution`` and ``drain``, and for weight 0."""
    return weight > 0 and mode in (AgentMode.FULL, AgentMode.LEADER)


class Leader:
    """Periodic task that holds the leader's lease, or waits until it is vacant. ``maintenance`` is another periodic task.

    Args:
        on_overdue: called when some agent's lease is over (the failure detector should run).
        weight: preference of this agent as leader, from its configuration.
        horizon_seconds: jobs that come due within this time count as due.
    """

    name = "leader"

    def __init__(
        self,
        ownership: Ownership,
        leadership: Leadership,
        due_notifier: DueNotifier,
        tasks: Sequence[MaintenanceTask],
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
        self._leadership = leadership
        self._due_notifier = due_notifier
        self.maintenance = MaintenanceTasks(tasks, self.leads, clock, leases.leader_renew_seconds)
        self._leases = leases
        self._now = clock.boottime
        self._on_overdue = on_overdue
        self._telemetry = telemetry
        self._log = log
        self._weight = weight
        self._horizon_seconds = horizon_seconds
        self._epoch: int | None = None
        self._resigned = False
        self._vacant = True  # a new cluster gets a leader without waiting for a renewal
        self._unserved: set[Group] = set()
        self.on_next_fire: Callable[[float | None], None] = lambda seconds: None
        """Called with each tick: seconds until the first fire of a schedule is to be decided."""
        self.on_bulk: Callable[[], None] = lambda: None
        """Called with each tick while a bulk operation has not ended."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when this agent begins to lead, and when it leads no more."""
        self.kicked = asyncio.Event()
        telemetry.read_from("leading", lambda: int(self.leads()))

    def leads(self) -> bool:
        """True while this agent holds the leader's lease."""
        return self._epoch is not None

    def on_vacancy(self) -> None:
        """The leader's lease may be vacant, for example because an agent was certified dead: try to take it now."""
        if self._epoch is None and not self._resigned:
            self._vacant = True
            self.kicked.set()

    @property
    def epoch(self) -> int | None:
        """Epoch of the leader's lease while this agent holds it."""
        return self._epoch

    def on_leader_seen(self, leader: bytes | None) -> None:
        """A renewal returned the id of the leader. None, or this agent's own id (an answer was lost): try to lead."""
        if leader in (None, self._ownership.agent_id):
            self.on_vacancy()

    async def tick(self) -> float:
        """Renew the leader's lease and do the leader's work, or wait."""
        if self._resigned:
            return IDLE_SECONDS
        if self._ownership.lease_status(self._now()) is not LeaseStatus.TRUSTED:
            self._step_down("its own lease is in doubt")
            return self._leases.leader_renew_seconds
        if self._epoch is None:
            if not self._vacant:
                return IDLE_SECONDS
            return 0.0 if await self._campaign() else IDLE_SECONDS
        return await self._lead()

    async def resign(self) -> None:
        """Give the leader's lease back for good, so that a successor need not wait for its end."""
        epoch, self._epoch = self._epoch, None
        self._resigned = True
        if epoch is not None:
            self.on_change()
            await self._leadership.resign(self._ownership.agent_id, epoch)
            self._log.info(Event.LEADER_RESIGNED, {"epoch": epoch})

    # ------------------------------------------------------------ election

    async def _campaign(self) -> bool:
        self._vacant = False
        self._epoch = await self._leadership.acquire(
            self._ownership.agent_id, self._weight, self._leases.leader_lease_seconds
        )
        if self._resigned:
            await self.resign()  # the agent left during the call
        if self._epoch is not None:
            self._telemetry.elections_won += 1
            self._log.info(Event.LEADER_ELECTED, {"epoch": self._epoch, "weight": self._weight})
            self.maintenance.kicked.set()
            self.on_change()
        return self._epoch is not None

    def _step_down(self, why: str) -> None:
        if self._epoch is not None:
            self._log.warning(Event.LEADER_SUPERSEDED, {"epoch": self._epoch, "reason": why})
            self._epoch = None
            self._vacant = True
            self.on_change()

    async def _lead(self) -> float:
        sent = self._now()
        tended = await self._leadership.tick(
            self._ownership.agent_id, self._weight, self._leases.leader_lease_seconds, self._horizon_seconds
        )
        if self._resigned:
            return IDLE_SECONDS  # the agent left during the call
        if tended.epoch != self._epoch:
            self._step_down(
                "another agent leads" if tended.epoch is None else "the leader's lease changed hands meanwhile"
            )
            self._vacant = tended.epoch is not None
            return 0.0 if self._vacant else IDLE_SECONDS
        self.on_next_fire(tended.fires_in_seconds)
        if tended.overdue:
            self._on_overdue()
        if tended.bulk:
            self.on_bulk()
        for found, task in ((tended.late, LATE_JOBS), (tended.signals, SIGNALS), (tended.batches, BATCHES)):
            if found:
                self.maintenance.hurry(task)
        self._note_unserved(await self._due_notifier.notify((group.lane, group.priority) for group in tended.due))
        if tended.heavier and self._epoch is not None and await self._transfer(self._epoch):
            return IDLE_SECONDS
        return max(sent + self._leases.leader_renew_seconds - self._now(), 0.0)

    async def _transfer(self, epoch: int) -> bool:
        """Pass the leader's lease to the heavier agent that the master chooses; True when it was passed on.

        This agent stops leading before the call: after a lost answer, the next renewal names the leader.
        """
        self._epoch = None
        successor = await self._leadership.transfer(self._ownership.agent_id, self._weight, epoch)
        if successor is None and not self._resigned:
            self._epoch = (
                epoch  # there is no heavier agent any more; the next tick shows whether the lease is still held
            )
            self.maintenance.kicked.set()
            self.on_change()
            return False
        self._log.info(Event.LEADER_RESIGNED, {"epoch": epoch, "heir": successor})
        self.on_change()
        return True

    def _note_unserved(self, unserved: set[Group]) -> None:
        for lane, priority in sorted(unserved - self._unserved):
            fields = {"lane": lane, "priority": Priority(priority).label}
            self._log.warning(
                Event.LANE_UNSERVED, {**fields, "reason": "jobs are due and no ACTIVE bucket serves them"}
            )
        self._unserved = unserved
        self._telemetry.groups_unserved = len(unserved)
