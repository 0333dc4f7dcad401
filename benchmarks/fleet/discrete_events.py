"""What work waits at: servers in order of arrival, and a log that commits in groups. Times are seconds of virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, NamedTuple

Call = Callable[[Any], None]


class Timeline:
    """Events in the order of their times; those of one moment in the order of their requests."""

    __slots__ = ("_events", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Call, Any]] = []
        self._number = 0

    def at(self, moment: float, call: Call, what: Any = None) -> None:
        """Call back at a moment, not before now."""
        self._number += 1
        heapq.heappush(self._events, (moment, self._number, call, what))

    def run(self, until: float) -> int:
        """Everything up to a moment; how many events that were."""
        events, pop, count = self._events, heapq.heappop, 0
        while events and events[0][0] <= until:
            self.now, _, call, what = pop(events)
            call(what)
            count += 1
        self.now = until
        return count


class Station:
    """Some equal servers and one queue in order of arrival.

    A request at ``t`` is served from the moment the first server is free, so the end is known at once and the queue needs no
    events. Requests are to be made in the order of their times; one made ahead of its time keeps a server idle until then.

    Args:
        speed: seconds of work that one server does in a second.
    """

    __slots__ = ("_free", "away_until", "busy", "served", "servers", "speed")

    def __init__(self, servers: int, speed: float = 1.0) -> None:
        self.servers = servers
        self.speed = speed
        self._free = [0.0] * servers
        self.busy = 0.0
        """Seconds of work requested so far."""
        self.served = 0
        self.away_until = 0.0
        """No request is served before."""

    def serve(self, at: float, seconds: float) -> float:
        """When a request ends that comes at ``at`` and takes so many seconds of one server."""
        free = self._free
        begin = max(free[0], at, self.away_until)
        end = begin + seconds / self.speed
        heapq.heapreplace(free, end)
        self.busy += seconds
        self.served += 1
        return end

    def wait(self, at: float) -> float:
        """How long a request would wait now."""
        return max(self._free[0] - at, 0.0)

    def away(self, until: float) -> None:
        """The servers stand still until then."""
        self.away_until = until


class Log:
    """A write-ahead log on one disk: while a flush is under way, commits gather for the next one.

    Args:
        flush_seconds: one flush of next to nothing.
        bytes_per_second: what the disk takes on top of that.
    """

    __slots__ = ("_flush", "_gathering", "_rate", "_size", "_time", "_writing", "bytes", "flushes")

    def __init__(self, time: Timeline, flush_seconds: float, bytes_per_second: float) -> None:
        self._time = time
        self._flush = flush_seconds
        self._rate = bytes_per_second
        self._gathering: list[tuple[Call, Any]] = []
        self._size = 0.0
        self._writing = False
        self.bytes = 0.0
        self.flushes = 0

    def commit(self, size: float, call: Call, what: Any) -> None:
        """Call back when so many bytes are safe."""
        self._gathering.append((call, what))
        self._size += size
        if not self._writing:
            self._write()

    @property
    def busy(self) -> float:
        """Seconds of writing so far. Flushes do not count: one carries whatever has gathered, so they never fill a disk."""
        return self.bytes / self._rate

    def _write(self) -> None:
        group, self._gathering = self._gathering, []
        seconds = self._flush + self._size / self._rate
        self.bytes += self._size
        self.flushes += 1
        self._size, self._writing = 0.0, True
        self._time.at(self._time.now + seconds, self._written, group)

    def _written(self, group: list[tuple[Call, Any]]) -> None:
        self._writing = False
        if self._gathering:
            self._write()
        for call, what in group:
            call(what)


class Quantiles(NamedTuple):
    """Of some times, in seconds."""

    p50: float
    p99: float
    longest: float


class Histogram:
    """Weighted times in classes that grow by a twentieth, from a microsecond on."""

    __slots__ = ("_counts", "longest", "total")

    _GROWTH = math.log(1.05)

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self.total = 0.0
        self.longest = 0.0

    def add(self, seconds: float, weight: float = 1.0) -> None:
        """Count a time so often."""
        place = int(math.log(seconds * 1e6) / self._GROWTH) if seconds > 1e-6 else 0
        counts = self._counts
        counts[place] = counts.get(place, 0.0) + weight
        self.total += weight
        if seconds > self.longest:
            self.longest = seconds

    def quantile(self, share: float) -> float:
        """The time that this share does not exceed, to a twentieth."""
        left = self.total * share
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0.0:
                return min(math.exp((place + 1) * self._GROWTH) / 1e6, self.longest)
        return self.longest

    def quantiles(self) -> Quantiles:
        """The three that are shown."""
        return Quantiles(self.quantile(0.5), self.quantile(0.99), self.longest)
