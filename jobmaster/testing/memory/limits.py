"""Limits of a cluster in memory: declared and set values are there, and its jobs run one at a time."""

from __future__ import annotations

from jobmaster.clock import Clock
from jobmaster.handlers import Handlers
from jobmaster.model.flow.limit import LimitValues, LimitView


class MemoryLimits:
    """``jobmaster.ports.ClientLimits`` over the handlers of a cluster in memory."""

    def __init__(self, handlers: Handlers, clock: Clock) -> None:
        self._handlers = handlers
        self._clock = clock
        self._set: dict[str, tuple[LimitValues, str, str, int]] = {}

    async def set(self, values: LimitValues, actor: str, reason: str) -> None:
        """Values that stand over those of the code."""
        self._set[values.name] = (values, actor, reason, self._clock.wall_us())

    async def reset(self, name: str, actor: str) -> bool | None:
        """The values of the code count again."""
        if self._set.pop(name, None) is None:
            return None
        return name not in self._declared()

    async def list(self, name: str | None = None, *, limit: int = 1000) -> list[LimitView]:
        """Limits by name; nothing is taken of them between two jobs."""
        names = sorted(self._declared().keys() | self._set.keys())
        return [self._view(each) for each in names if name in (None, each)][:limit]

    def _declared(self) -> dict[str, LimitValues]:
        return {limit.name: limit.values for handler in self._handlers for limit in handler.options.limits}

    def _view(self, name: str) -> LimitView:
        declared = self._declared().get(name)
        own = declared or LimitValues(name, None, None, None)
        values, actor, reason, set_us = self._set.get(name, (None, "", "", 0))
        rate, burst = own.rate, own.burst
        if values is not None and values.rate is not None:
            rate, burst = values.rate, values.burst or max(values.rate, 1.0)
        return LimitView(
            name=name, running=own.running if values is None or values.running is None else values.running, rate=rate,
            burst=burst, declared=declared is not None, declared_running=own.running, declared_rate=own.rate,
            declared_burst=own.burst, set_us=set_us or None, set_by=actor, set_reason=reason, taken=0, keys=0,
            fullest_key="", fullest=0,
        )  # fmt: skip
