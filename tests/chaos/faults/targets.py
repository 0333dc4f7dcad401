"""The parameter of every fault, and its result."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.cluster.fleet import Fleet
from tests.chaos.cluster.machine import Freezer
from tests.chaos.cluster.servers import Servers
from tests.support.proxy.proxy_process import ProxyProcess

LEASE_SECONDS = 4.0
"""Of the agents in a run; the faults last from a fraction of it to twice as long."""


@dataclass
class Targets:
    """Everything that a fault can be injected into."""

    servers: Servers
    fleet: Fleet
    proxy: ProxyProcess
    producers: list[str]
    no_freezer: str | None
    no_time_namespaces: str | None
    restart: Callable[[str, float, Sequence[str]], None]
    """Start a member again: name, in how many seconds, and a command to put before its own."""
    woken: dict[int, float] = field(default_factory=dict)
    """Pid -> time of its last SIGCONT."""
    busy: set[str] = field(default_factory=set)
    """Members and servers that have a fault; none gets a second one at once."""
    freezers: int = 0

    def an_agent(self, rng: random.Random) -> str | None:
        """A running agent without a fault."""
        free = [name for name in self.fleet.agents if name not in self.busy and self.fleet.members[name].running]
        return rng.choice(free) if free else None

    def freezer(self, name: str) -> Freezer:
        """A control group of its own for one fault."""
        self.freezers += 1
        return Freezer(f"jobmaster-chaos-{name}-{self.freezers}")


class InjectedFault(NamedTuple):
    """A fault that was injected."""

    target: str
    """For the log; empty: there was no target."""
    heal: Callable[[], None] | None = None
    """Called when its time is over."""
    store: str = ""
    """The store that may have lost something."""
    pids: tuple[int, ...] = ()
    """Processes that the fault has killed."""


MISSED = InjectedFault("")
