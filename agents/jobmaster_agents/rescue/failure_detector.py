"""Death certificates for agents whose lease ran out. Any healthy agent may judge; there is no leader.

The judgement itself is one compare-and-set per agent in the master. It costs a query, so an idle agent asks only once per
lease; the coordinator, whose own heartbeat shows when a lease is overdue, and a renewal that shows lost buckets wake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jobmaster.clock import Clock
from jobmaster.rules.lease import Standing
from jobmaster.settings.model import Leases
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.state.ownership import Ownership

CERTIFICATES_MAX = 64


class DetectorMaster(Protocol):
    """Where certificates are written."""

    async def certify_dead(self, judge: bytes, limit: int) -> list[bytes]: ...


class FailureDetector:
    """The duty that declares others dead.

    Args:
        on_certified: called when somebody was declared dead (rescue may begin).
    """

    name = "judging"

    def __init__(
        self,
        ownership: Ownership,
        court: DetectorMaster,
        leases: Leases,
        clock: Clock,
        on_certified: Callable[[], None],
        telemetry: Telemetry,
        log: EventLog,
    ) -> None:
        self._ownership = ownership
        self._court = court
        self._every = leases.lease_seconds
        self._now = clock.boottime
        self._on_certified = on_certified
        self._telemetry = telemetry
        self._log = log
        self._first = True
        self.kicked = asyncio.Event()

    def kick(self) -> None:
        """Somebody's lease seems to be over."""
        self.kicked.set()

    async def tick(self) -> float:
        """Judge, if this agent is sound itself."""
        if self._first:
            # Nobody may judge in the first term of its own lease: the question would be refused.
            self._first = False
            return self._every
        if self._ownership.standing(self._now()) is not Standing.TRUSTED:
            return self._every / 4.0
        dead = await self._court.certify_dead(self._ownership.agent_id, CERTIFICATES_MAX)
        for agent_id in dead:
            self._log.warning(Event.AGENT_CERTIFIED_DEAD, {"dead": agent_id, "reason": "its lease ran out"})
        if dead:
            self._telemetry.agents_certified += len(dead)
            self._on_certified()
        return 0.0 if len(dead) == CERTIFICATES_MAX else self._every * self._ownership.stretch
