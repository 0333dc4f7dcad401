"""Failure detector: writes death certificates for agents whose lease has ended. Every healthy agent runs one.

A certificate is one compare-and-set per agent in the master. The query costs something, so an idle agent runs it once per
lease. The leader, whose statement shows overdue leases, wakes its own detector at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobmaster.clock import Clock
from jobmaster.ports import DetectorMembers
from jobmaster.rules.lease import LeaseStatus
from jobmaster.settings.model import Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import Ownership

CERTIFICATES_MAX = 64


class FailureDetector:
    """Periodic task that certifies agents dead.

    Args:
        on_certified: called when at least one agent was certified dead (the rescue may begin).
    """

    name = "failure-detector"

    def __init__(
        self,
        ownership: Ownership,
        members: DetectorMembers,
        leases: Leases,
        clock: Clock,
        on_certified: Callable[[], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._members = members
        self._every = leases.lease_seconds
        self._now = clock.boottime
        self._on_certified = on_certified
        self._telemetry = telemetry
        self._log = log
        self._first = True
        self.kicked = asyncio.Event()

    def kick(self) -> None:
        """The lease of some agent seems to be over: check now."""
        self.kicked.set()

    async def tick(self) -> float:
        """Certify agents whose lease has ended, while this agent's own lease is trusted."""
        if self._first:
            # The master refuses certificates by an agent that is younger than one lease.
            self._first = False
            return self._every
        if self._ownership.lease_status(self._now()) is not LeaseStatus.TRUSTED:
            return self._every / 4.0
        dead = await self._members.certify_dead(self._ownership.agent_id, CERTIFICATES_MAX)
        for agent_id in dead:
            self._log.warning(Event.AGENT_CERTIFIED_DEAD, {"dead": agent_id, "reason": "its lease ran out"})
        if dead:
            self._telemetry.agents_certified += len(dead)
            self._on_certified()
        return 0.0 if len(dead) == CERTIFICATES_MAX else self._every * self._ownership.stretch
