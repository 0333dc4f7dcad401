"""Publishes the limits that this agent's handlers declare, with the numbers of the configuration: at its start, and again now
and then.

A failover of the master may forget them. A limit without a line has no permits: its jobs wait until it is published again.
What an operator has set stands over them, and the log says so: a deploy with other numbers has no effect until the reset.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.model.flow.limit import LimitValues
from jobmaster.ports import DeclaredLimits
from jobmaster_agents.event_log import Event, EventLog

AGAIN_SECONDS = 60.0


class LimitPublisher:
    """Periodic task of an agent whose handlers have limits."""

    name = "limit-publisher"

    def __init__(self, agent_id: bytes, master: DeclaredLimits, limits: Sequence[LimitValues], log: EventLog) -> None:
        self._agent_id = agent_id
        self._master = master
        self.limits = limits
        self._log = log
        self._reported: list[str] = []

    async def publish(self) -> None:
        """Publish all. What an agent has declared that started later stands."""
        if not self.limits:
            return
        set_by_others = await self._master.declare(self._agent_id, self.limits)
        if new := [name for name in set_by_others if name not in self._reported]:
            self._log.info(Event.LIMITS_OVERRIDDEN, {"limits": new})
        self._reported = set_by_others

    async def tick(self) -> float:
        """Publish all again; seconds until the next time."""
        await self.publish()
        return AGAIN_SECONDS
