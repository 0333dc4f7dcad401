"""Publishes the limits that this agent's handlers declare: at its start, and again now and then.

A failover of the master may forget them. A limit without a line has no permits: its jobs wait until it is published again.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.handlers import Handlers
from jobmaster.handlers.limits import check_same_numbers
from jobmaster.model.limit import LimitValues
from jobmaster.ports import DeclaredLimits

AGAIN_SECONDS = 60.0


class LimitPublisher:
    """Periodic task of an agent whose handlers have limits."""

    name = "limit-publisher"

    def __init__(self, agent_id: bytes, master: DeclaredLimits, limits: Sequence[LimitValues]) -> None:
        self._agent_id = agent_id
        self._master = master
        self.limits = limits

    async def publish(self) -> None:
        """Publish all. What an agent has declared that started later stands."""
        if self.limits:
            await self._master.declare(self._agent_id, self.limits)

    async def tick(self) -> float:
        """Publish all again; seconds until the next time."""
        await self.publish()
        return AGAIN_SECONDS


def declared_limits(handlers: Handlers) -> list[LimitValues]:
    """The limits of all handlers, by name.

    Raises:
        ConfigError: two handlers give one limit different numbers.
    """
    found: dict[str, LimitValues] = {}
    for handler in handlers:
        check_same_numbers(handler.name, handler.options.limits, handlers)
        found.update((limit.name, limit.values) for limit in handler.options.limits)
    return [found[name] for name in sorted(found)]
