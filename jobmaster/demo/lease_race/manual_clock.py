"""A clock that advances only by hand: it makes an agent of a drill sleep, and its lease last, without waiting.

It is part of the product because ``jobmaster drill`` is a command of the product.
"""

from __future__ import annotations

from jobmaster.clock import SystemClock, new_id


class ManualClock:
    """The clock of one agent or producer of a drill.

    Args:
        shift_seconds: error of its wall clock.
    """

    def __init__(self, shift_seconds: float) -> None:
        self._system = SystemClock()
        self._at = self._system.boottime()
        self._shift_us = round(shift_seconds * 1e6)

    def boottime(self) -> float:
        """The current value of the clock."""
        return self._at

    def wall_us(self) -> int:
        """The machine's wall clock, shifted."""
        return self._system.wall_us() + self._shift_us

    def turn(self, seconds: float) -> None:
        """Advance the clock."""
        self._at += seconds

    def new_id(self) -> bytes:
        """An id as a process with this wall clock would create it: its time part has the same error."""
        fresh = new_id()
        return (int.from_bytes(fresh[:6], "big") + self._shift_us // 1000).to_bytes(6, "big") + fresh[6:]
