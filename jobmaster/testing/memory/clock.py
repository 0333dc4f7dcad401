"""The clock of a cluster in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobmaster.clock import SystemClock


class MemoryClock:
    """The machine's clocks; the wall clock is ahead while a job runs that is due later."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.boottime = self._system.boottime
        self._lock = threading.Lock()
        self._open: list[int] = []
        """How far ahead each of the runs under way needs the clock. They may overlap, and end in any order."""
        self._ahead_us = 0

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return self._system.wall_us() + self._ahead_us

    @contextmanager
    def at_least(self, moment_us: int) -> Iterator[None]:
        """The wall clock shows this moment, or the present one when that is later."""
        ahead_us = max(moment_us - self._system.wall_us(), 0)
        self._change(self._open.append, ahead_us)
        try:
            yield
        finally:
            self._change(self._open.remove, ahead_us)

    def _change(self, how: Callable[[int], None], ahead_us: int) -> None:
        with self._lock:
            how(ahead_us)
            self._ahead_us = max(self._open, default=0)
