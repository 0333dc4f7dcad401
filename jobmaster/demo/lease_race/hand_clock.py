"""A clock that stands still until it is turned: how a drill makes a process sleep, and its lease last, without waiting."""

from __future__ import annotations

from jobmaster.clock import SystemClock, new_id


class HandClock:
    """The clock of one process of a drill.

    Args:
        shift_seconds: how far its wall clock is off.
    """

    def __init__(self, shift_seconds: float) -> None:
        self._system = SystemClock()
        self._at = self._system.boottime()
        self._shift_us = round(shift_seconds * 1e6)

    def boottime(self) -> float:
        """Where the hand stands."""
        return self._at

    def wall_us(self) -> int:
        """The machine's wall clock, shifted."""
        return self._system.wall_us() + self._shift_us

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self._at += seconds

    def new_id(self) -> bytes:
        """An id as a process with this wall clock would make it: its time part is off as well."""
        fresh = new_id()
        return (int.from_bytes(fresh[:6], "big") + self._shift_us // 1000).to_bytes(6, "big") + fresh[6:]
