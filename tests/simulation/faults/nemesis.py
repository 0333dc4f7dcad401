"""Faults: a fault of a single call is drawn for each call; cluster faults hit whole processes and servers.

Every seed has its own mix (swarm testing): some kinds are off and the others are common, so that in some histories two rare
faults meet often.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random

from tests.simulation.checks.trace import Trace
from tests.simulation.runtime.event_loop import Process, SimLoop
from tests.simulation.runtime.network import CallFault, Server

AGENT_CALL_FAULTS = (
    CallFault.REFUSED, CallFault.LOST_REQUEST, CallFault.LOST_REPLY, CallFault.LOST_REPLY, CallFault.LATE,
    CallFault.SLOW, CallFault.CRASH_BEFORE, CallFault.CRASH_AFTER,
    CallFault.PAUSE_BEFORE, CallFault.PAUSE_AFTER,
)  # fmt: skip
CLIENT_CALL_FAULTS = (CallFault.REFUSED, CallFault.LOST_REQUEST, CallFault.LOST_REPLY, CallFault.LATE, CallFault.SLOW)
_CRASHES = (CallFault.CRASH_BEFORE, CallFault.CRASH_AFTER)
_HEARTBEATS = frozenset({"beat", "ping", "members/renew", "leadership/tick", "wait_wake", "members/certify_dead"})
_STARTS = frozenset({"members/register", "adopt_store", "health", "stores/generation", "maintenance/ensure_partitions"})
CRASHES_MAX = 4
CALL_FAULTS_MAX = 14


class ClusterFault(Enum):
    """A fault of a whole process or server."""

    CRASH = "agent killed"
    PAUSE = "agent stopped"
    LEAVE = "agent leaves in order"
    CUT = "agent cut off"
    STORE_DOWN = "store down"
    MASTER_DOWN = "master down"
    ROLLBACK = "store rolled back"
    STORE_LOST = "store lost"
    STORE_SILENT = "store silent for several leases"
    STORE_FULL = "store full for several leases"
    FAILOVER = "failover that forgets"
    CLOCKS = "wall clocks jump"
    ARCHIVE = "finished jobs archived"
    FREEZE = "buckets frozen"
    JOBS_PAUSED = "jobs paused"


class Nemesis:
    """Draws the fault of each call, and cuts connections.

    Args:
        chance: the stream of faults.
        faultless: no call has a fault.
        on_crash: called with a process that is to die now.
    """

    def __init__(
        self, loop: SimLoop, trace: Trace, chance: Random, *, faultless: bool, on_crash: Callable[[Process], None]
    ) -> None:
        self._loop = loop
        self._trace = trace
        self.chance = chance
        self._draw = chance.random
        self._on_crash = on_crash
        self.quiet = True
        self.lock_seconds = 0.0
        """Every call waits for up to so long between its arrival and its effect, so that two about one row often meet."""
        self.faultless = faultless
        self.rate = 0.0 if faultless else chance.choice((0.004, 0.012, 0.012, 0.03, 0.06))
        kinds = list(AGENT_CALL_FAULTS)
        self._kinds = tuple(chance.sample(kinds, chance.randint(3, len(kinds))))
        self._locks = 0.0 if faultless else chance.choice((0.0, 0.0, 0.02, 0.08))
        self.statement_bytes = None if faultless else chance.choice((None, 1200, 2400))
        """Payload above which the master cancels a statement of several rows for its time; it never becomes faster."""
        self._cuts: dict[tuple[str, str], CallFault] = {}
        self.crashes = 0
        self.calls_disturbed = 0
        self.cluster_faults = 0

    # ------------------------------------------------------------ calls

    def call_fault(self, process: Process | None, server: Server, what: str, *, writes: bool) -> CallFault:
        """The fault of this call."""
        if self.quiet or process is None:
            return CallFault.OK
        if self._cuts and (cut := self._cuts.get((process.name, server.name))) is not None:
            return cut
        rate = self.rate / 4 if what in _HEARTBEATS else self.rate
        if self._draw() >= rate or self.calls_disturbed >= CALL_FAULTS_MAX:
            return CallFault.OK
        if process.parts is None:
            call_fault = CLIENT_CALL_FAULTS[int(self._draw() * len(CLIENT_CALL_FAULTS))]
        else:
            call_fault = self._kinds[int(self._draw() * len(self._kinds))]
        if call_fault in _CRASHES:
            if self.crashes >= CRASHES_MAX:
                return CallFault.OK
            self.crashes += 1
        self.calls_disturbed += 1
        return call_fault

    def crash(self, process: Process) -> None:
        """The process dies."""
        self._loop.kill(process)
        self._trace.note(self._loop.now, process.name, "dies", "")
        self._on_crash(process)

    def latency(self) -> float:
        """One way to a server and back."""
        return 0.0003 + 0.002 * self._draw()

    def lock_wait(self) -> float:
        """From the arrival of a request to its effect."""
        draw = self._draw()
        if self.quiet or draw > 0.1:
            return self.lock_seconds * self._draw() if self.lock_seconds else 0.0
        if draw < self._locks:
            return 0.6 * self._draw()
        return 0.004 * self._draw()

    def long_wait(self) -> float:
        """A slow network."""
        return 0.05 + 1.3 * self._draw() ** 2

    def pause(self) -> float:
        """How long a process stands still; a lease is one second."""
        return self.chance.choice((0.2, 0.7, 1.1, 1.6, 2.2))

    # ------------------------------------------------------------ cuts

    def cut(self, process: Process, servers: list[Server], how: CallFault | None = None) -> None:
        """Requests of the process do not arrive at these servers, or their replies do not return; ``None``: this is drawn."""
        how = how or self.chance.choice((CallFault.REFUSED, CallFault.LOST_REQUEST, CallFault.LOST_REPLY))
        for server in servers:
            self._cuts[process.name, server.name] = how
            self._trace.note(self._loop.now, process.name, "cut", server.name, how.value)

    def mend(self, process: Process) -> None:
        """The process reaches every server again."""
        for pair in [pair for pair in self._cuts if pair[0] == process.name]:
            del self._cuts[pair]

    def is_cut(self, process: Process | None, server: Server) -> bool:
        """For messages that a server sends without a request."""
        return process is not None and (process.name, server.name) in self._cuts

    def heal(self) -> None:
        """End every fault and inject no more."""
        self.quiet = True
        self._cuts.clear()

    @property
    def faults(self) -> int:
        return self.cluster_faults + self.calls_disturbed
