"""Compares this machine's wall clock with the master's at every renewal.

Nothing of the protocol depends on it: leases go by clocks that do not jump, due times by the master. But ids and due times
that handlers and producers of this machine create come from the wall clock, and stores refuse ids that are too far off.
"""

from __future__ import annotations

from jobmaster.clock import Clock
from jobmaster.telemetry import Telemetry
from jobmaster_agents.event_log import Event, EventLog

SHARE = 0.1
"""Share of ``limits.clock_skew`` from which on a difference is logged."""


class ClockCheck:
    """Measures the difference, and logs once when it becomes too large.

    Args:
        limit_seconds: ``limits.clock_skew``.
    """

    def __init__(self, limit_seconds: float, clock: Clock, telemetry: Telemetry, log: EventLog) -> None:
        self._most = limit_seconds * SHARE
        self._limit = limit_seconds
        self._wall_us = clock.wall_us
        self._log = log
        self._warned = False
        self._ahead = 0.0
        telemetry.read_from("clock_ahead_seconds", lambda: self._ahead)

    def now_us(self) -> int:
        """The wall clock in microseconds, to be read before the call."""
        return self._wall_us()

    def compare(self, asked_us: int, master_us: int | None) -> None:
        """The master read its clock between ``asked_us`` and now: only a time outside of that interval is an error."""
        if master_us is None:
            return
        ahead_us = max(asked_us - master_us, 0) - max(master_us - self._wall_us(), 0)
        self._ahead = ahead_us / 1e6
        too_much = abs(self._ahead) > self._most
        if too_much and not self._warned:
            self._log.warning(Event.CLOCK_SKEWED, {"ahead_seconds": self._ahead, "refused_from_seconds": self._limit})
        self._warned = too_much
