"""The catalogue of the laboratory: faults of links, ways and whole hosts, which a loopback cannot show."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.faults import agent_faults
from tests.chaos.faults.catalogue import LOG_LOST, FaultKind
from tests.chaos.faults.targets import MISSED, InjectedFault, Targets
from tests.lab.network import Network, Way
from tests.lab.servers import STORE_HOSTS, LabServers, may_promote

AGENT_HOSTS = {"a": "agents1", "b": "agents1", "c": "agents2", "d": "agents3"}
"""Agent -> its host."""
PRODUCER_HOSTS = {"p0": "clients1", "p1": "clients2"}
HOSTS = ("agents1", "agents2", "agents3", "store1", "store2", "db1", "db2", "clients1", "clients2")
SERVERS = ("store1", "store2", "db1", "db2")
CLIENTS = ("agents1", "agents2", "agents3", "clients1", "clients2")
_BACK_SECONDS = 0.3
"""From a host that is back to the start of what runs on it."""


@dataclass
class LabTargets(Targets):
    """What a fault of the laboratory can hit. Hosts that have vanished, or must not, are in `busy`."""

    network: Network | None = None

    @property
    def net(self) -> Network:
        assert self.network is not None
        return self.network

    @property
    def lab_servers(self) -> LabServers:
        assert isinstance(self.servers, LabServers)
        return self.servers


def _lab(targets: Targets) -> LabTargets:
    assert isinstance(targets, LabTargets)
    return targets


# ---------------------------------------------------------------- links and ways


def _silenced(lab: LabTargets, ways: list[Way], what: str, seconds: float) -> InjectedFault:
    lab.net.silence(ways)
    return InjectedFault(f"{what} for {seconds:g} s", lambda: lab.net.open(ways))


def take_link_down(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    lab, host = _lab(targets), rng.choice(HOSTS)
    lab.net.link_down(host)
    return InjectedFault(f"{host} for {seconds:g} s", lambda: lab.net.link_up(host))


def flap_link(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    lab, host, over = _lab(targets), rng.choice(HOSTS), threading.Event()
    flapping = threading.Thread(target=lab.net.flap, args=(host, over), daemon=True)
    flapping.start()

    def heal() -> None:
        over.set()
        flapping.join()

    return InjectedFault(f"{host} for {seconds:g} s", heal)


def narrow_link(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _queued(targets, rng, seconds, _lab(targets).net.narrow)


def delay_link(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _queued(targets, rng, seconds, _lab(targets).net.delay)


def _queued(targets: Targets, rng: random.Random, seconds: float, begin: Callable[[str], None]) -> InjectedFault:
    lab, host = _lab(targets), rng.choice(HOSTS)
    begin(host)
    return InjectedFault(f"{host} for {seconds:g} s", lambda: lab.net.wide(host))


def receive_nothing(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    host = rng.choice(HOSTS)
    return _silenced(_lab(targets), [(other, host) for other in HOSTS if other != host], host, seconds)


def send_nothing(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    host = rng.choice(HOSTS)
    return _silenced(_lab(targets), [(host, other) for other in HOSTS if other != host], host, seconds)


def silence_pair(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    client, server = rng.choice(CLIENTS), rng.choice(SERVERS)
    return _silenced(_lab(targets), [(client, server), (server, client)], f"{client} and {server}", seconds)


def silence_way(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    way = rng.choice(CLIENTS), rng.choice(SERVERS)
    sender, receiver = way if rng.random() < 0.5 else way[::-1]
    return _silenced(_lab(targets), [(sender, receiver)], f"{sender} to {receiver}", seconds)


def overlap_partitions(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Two splits of all hosts at once, each into two sides drawn anew."""
    ways: list[Way] = []
    told = []
    for _ in range(2):
        side = set(rng.sample(HOSTS, rng.randint(2, len(HOSTS) - 2)))
        ways += [(one, other) for one in HOSTS for other in HOSTS if (one in side) != (other in side)]
        told.append("+".join(sorted(side)))
    return _silenced(_lab(targets), ways, " / ".join(told), seconds)


def cut_standby_off(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _silenced(_lab(targets), [("db1", "db2"), ("db2", "db1")], "db1 and db2", seconds)


# ---------------------------------------------------------------- hosts that vanish


def _vanish(lab: LabTargets, host: str, members: dict[str, str], seconds: float) -> tuple[int, ...]:
    """The host, with its agents or producers; they start again a moment after it is back."""
    lab.busy.add(host)
    hit = [name for name, at in members.items() if at == host]
    for name in hit:
        lab.restart(name, seconds + _BACK_SECONDS, ())
    pids = tuple(lab.net.vanish(host))
    for name in hit:
        lab.fleet.members[name].kill()
    return pids


def _back(lab: LabTargets, host: str) -> None:
    lab.net.appear(host)
    lab.busy.discard(host)


def vanish_agents(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    lab = _lab(targets)
    free = [host for host in sorted(set(AGENT_HOSTS.values())) if host not in lab.busy]
    if not free:
        return MISSED
    host = rng.choice(free)
    pids = _vanish(lab, host, AGENT_HOSTS, seconds)
    return InjectedFault(f"{host} for {seconds:g} s", lambda: _back(lab, host), pids=pids)


def vanish_producer(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    lab = _lab(targets)
    free = [host for host in PRODUCER_HOSTS.values() if host not in lab.busy]
    if not free:
        return MISSED
    host = rng.choice(free)
    _vanish(lab, host, PRODUCER_HOSTS, seconds)
    return InjectedFault(f"{host} for {seconds:g} s", lambda: _back(lab, host))


def vanish_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    lab = _lab(targets)
    free = [name for name, host in STORE_HOSTS.items() if host not in lab.busy]
    if not free:
        return MISSED
    name = rng.choice(free)
    host = STORE_HOSTS[name]
    _vanish(lab, host, {}, seconds)

    def heal() -> None:
        _back(lab, host)
        lab.lab_servers.up(name)

    return InjectedFault(f"{host} for {seconds:g} s", heal, store=name)


def vanish_primary(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Promoted at once; the host comes back as the standby of the new primary."""
    lab, servers = _lab(targets), _lab(targets).lab_servers
    if {"db1", "db2"} & lab.busy or not may_promote(servers):
        return MISSED
    host = servers.primary_host
    lab.busy.update({"db1", "db2"})
    lab.net.vanish(host)
    servers.promote()

    def heal() -> None:
        lab.net.appear(host)
        servers.attach_standby()
        lab.busy.difference_update({"db1", "db2"})

    return InjectedFault(f"{host} for {seconds:g} s, {servers.primary_host} promoted", heal)


def vanish_standby(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Commits wait until it is back."""
    lab, servers = _lab(targets), _lab(targets).lab_servers
    if {"db1", "db2"} & lab.busy:
        return MISSED
    host = servers.standby_host
    lab.busy.update({"db1", "db2"})
    lab.net.vanish(host)

    def heal() -> None:
        lab.net.appear(host)
        servers.restart_standby()
        lab.busy.difference_update({"db1", "db2"})

    return InjectedFault(f"{host} for {seconds:g} s", heal)


def _delays(targets: Targets) -> str | None:
    return _lab(targets).net.no_delay


KINDS: dict[str, FaultKind] = {
    "link_down": FaultKind("the link of a host is down, silent both ways", take_link_down, longest_seconds=8),
    "link_flaps": FaultKind("a link goes down and up several times a second: loss", flap_link, longest_seconds=6),
    "link_narrow": FaultKind("2 Mbit/s to a host and a short queue: delay and loss", narrow_link, longest_seconds=6),
    "link_delayed": FaultKind(
        "delay, jitter and loss towards a host (netem)", delay_link, longest_seconds=6, needs=_delays
    ),
    "receives_nothing": FaultKind("a host sends, and nothing reaches it", receive_nothing, longest_seconds=8),
    "sends_nothing": FaultKind("everything reaches a host, and nothing leaves it", send_nothing, longest_seconds=8),
    "pair_silent": FaultKind("a client's host and a server's do not reach each other", silence_pair, longest_seconds=8),
    "way_silent": FaultKind("one way between a client's host and a server's is silent", silence_way, longest_seconds=8),
    "partitions": FaultKind("two partitions of all hosts that overlap", overlap_partitions, longest_seconds=8),
    "standby_cut_off": FaultKind(
        "primary and standby do not reach each other: commits wait", cut_standby_off, longest_seconds=6
    ),
    "agents_vanish": FaultKind("a host of agents vanishes with its supervisors", vanish_agents, longest_seconds=10),
    "producer_vanishes": FaultKind("a producer's host vanishes", vanish_producer, longest_seconds=6),
    "store_vanishes": FaultKind("a store's host vanishes, and comes back", vanish_store, LOG_LOST, longest_seconds=6),
    "primary_vanishes": FaultKind(
        "the primary's host vanishes, the synchronous standby is promoted", vanish_primary, longest_seconds=6
    ),
    "standby_vanishes": FaultKind("the standby's host vanishes: commits wait", vanish_standby, longest_seconds=5),
    "wall_clock_jump": FaultKind(
        "the wall clock of one host's agent jumps by up to an hour", agent_faults.turn_clock, longest_seconds=6
    ),
}
"""Every kind of fault of the laboratory, by name."""
