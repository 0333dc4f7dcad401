"""What happened, in order: calls through ports and the life of jobs. Two runs of one seed have the same trace.

An *event* is a line of it: a call to a server by an agent, a client or a supervisor, and a step in a job's life
(acknowledged, started, ended, its row changed, its bucket changed). Heartbeats, the leader's round and waits for a wake
token are in the trace and are not counted, because an idle cluster makes them too.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.simulation.runtime.event_loop import Process

if TYPE_CHECKING:
    from tests.simulation.runtime.network import CallFault

_UNCOUNTED = frozenset({"beat", "members/renew", "leadership/tick", "wait_wake", "members/certify_dead"})

Line = tuple[int, str, str, str, str]
"""Microseconds, who, where, what, how."""


class Trace:
    """Lines in order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.uncounted = 0

    def call(self, now: float, process: Process | None, server: str, what: str, call_fault: CallFault) -> None:
        """A call is about to be made."""
        if what in _UNCOUNTED:
            self.uncounted += 1
        self.lines.append(
            (int(now * 1e6), process.name if process is not None else "-", server, what, call_fault._value_)
        )

    def note(self, now: float, who: str, what: str, subject: str, how: str = "") -> None:
        """Something else of interest."""
        self.lines.append((int(now * 1e6), who, what, subject, how))

    @property
    def events(self) -> int:
        return len(self.lines) - self.uncounted

    def digest(self) -> str:
        """Equal for equal traces."""
        return hashlib.blake2b(repr(self.lines).encode(), digest_size=16).hexdigest()

    def text(self) -> str:
        """For people."""
        first = self.lines[0][0] if self.lines else 0
        return "\n".join(
            f"{(at - first) / 1e6:9.4f} {who:10} {where:12} {what:34} {how}" for at, who, where, what, how in self.lines
        )
