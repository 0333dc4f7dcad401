"""Faults of links and of ways between hosts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from tests.chaos.faults.targets import InjectedFault, Targets
from tests.lab.faults.targets import CLIENTS, HOSTS, SERVERS, LabTargets, lab
from tests.lab.network import Way


def _silenced(at: LabTargets, ways: list[Way], what: str, seconds: float) -> InjectedFault:
    at.net.silence(ways)
    return InjectedFault(f"{what} for {seconds:g} s", lambda: at.net.open(ways))


def take_link_down(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    at, host = lab(targets), rng.choice(HOSTS)
    at.net.link_down(host)
    return InjectedFault(f"{host} for {seconds:g} s", lambda: at.net.link_up(host))


def flap_link(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    at, host, over = lab(targets), rng.choice(HOSTS), threading.Event()
    flapping = threading.Thread(target=at.net.flap, args=(host, over), daemon=True)
    flapping.start()

    def heal() -> None:
        over.set()
        flapping.join()

    return InjectedFault(f"{host} for {seconds:g} s", heal)


def narrow_link(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _queued(targets, rng, seconds, lab(targets).net.narrow)


def delay_link(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _queued(targets, rng, seconds, lab(targets).net.delay)


def _queued(targets: Targets, rng: random.Random, seconds: float, begin: Callable[[str], None]) -> InjectedFault:
    at, host = lab(targets), rng.choice(HOSTS)
    begin(host)
    return InjectedFault(f"{host} for {seconds:g} s", lambda: at.net.wide(host))


def receive_nothing(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    host = rng.choice(HOSTS)
    return _silenced(lab(targets), [(other, host) for other in HOSTS if other != host], host, seconds)


def send_nothing(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    host = rng.choice(HOSTS)
    return _silenced(lab(targets), [(host, other) for other in HOSTS if other != host], host, seconds)


def silence_pair(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    client, server = rng.choice(CLIENTS), rng.choice(SERVERS)
    return _silenced(lab(targets), [(client, server), (server, client)], f"{client} and {server}", seconds)


def silence_way(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    way = rng.choice(CLIENTS), rng.choice(SERVERS)
    sender, receiver = way if rng.random() < 0.5 else way[::-1]
    return _silenced(lab(targets), [(sender, receiver)], f"{sender} to {receiver}", seconds)


def overlap_partitions(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Two splits of all hosts at once, each into two sides drawn anew."""
    ways: list[Way] = []
    told = []
    for _ in range(2):
        side = set(rng.sample(HOSTS, rng.randint(2, len(HOSTS) - 2)))
        ways += [(one, other) for one in HOSTS for other in HOSTS if (one in side) != (other in side)]
        told.append("+".join(sorted(side)))
    return _silenced(lab(targets), ways, " / ".join(told), seconds)


def cut_standby_off(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _silenced(lab(targets), [("db1", "db2"), ("db2", "db1")], "db1 and db2", seconds)
