"""The parameter of every fault of the laboratory: the hosts, and what runs on each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.faults.targets import Targets
from tests.lab.clocks import HostClocks
from tests.lab.network import Network
from tests.lab.servers import LabServers

AGENT_HOSTS = {"a": "agents1", "b": "agents1", "c": "agents2", "d": "agents3"}
"""Agent -> its host."""
PRODUCER_HOSTS = {"p0": "clients1", "p1": "clients2"}
HOSTS = ("agents1", "agents2", "agents3", "store1", "store2", "db1", "db2", "clients1", "clients2")
SERVERS = ("store1", "store2", "db1", "db2")
CLIENTS = ("agents1", "agents2", "agents3", "clients1", "clients2")
BACK_SECONDS = 0.3
"""From a host that is back to the start of what runs on it."""
DATABASE_HOSTS = {"db1", "db2"}


@dataclass
class LabTargets(Targets):
    """What a fault of the laboratory can hit. Hosts that have vanished, or must not, are in `busy`."""

    network: Network | None = None
    clocks: HostClocks | None = None

    @property
    def net(self) -> Network:
        assert self.network is not None
        return self.network

    @property
    def host_clocks(self) -> HostClocks:
        assert self.clocks is not None
        return self.clocks

    @property
    def lab_servers(self) -> LabServers:
        assert isinstance(self.servers, LabServers)
        return self.servers

    def prefix(self, host: str) -> tuple[str, ...]:
        """The command to put before one that is to run on a host."""
        return (*self.net.prefix(host), *self.host_clocks.prefix(host))

    def vanish(self, host: str, seconds: float) -> tuple[int, ...]:
        """The host is gone at once, with its agents or producers; they start again a moment after it is back."""
        self.busy.add(host)
        hit = members(host)
        for name in hit:
            self.restart(name, seconds + BACK_SECONDS, ())
        pids = tuple(self.net.vanish(host))
        for name in hit:
            self.fleet.members[name].kill()
        return pids

    def appear(self, host: str) -> None:
        """The host is back, with boot clocks that began anew."""
        self.host_clocks.booted(host)
        for name in members(host):
            self.fleet.prefixes[name] = self.prefix(host)
        self.net.appear(host)

    def release(self, *hosts: str) -> None:
        """Other faults may hit them again."""
        self.busy.difference_update(hosts)


def members(host: str) -> list[str]:
    """Agents and producers of a host."""
    return [name for name, at in {**AGENT_HOSTS, **PRODUCER_HOSTS}.items() if at == host]


def lab(targets: Targets) -> LabTargets:
    """The targets of a fault of this catalogue."""
    assert isinstance(targets, LabTargets)
    return targets
