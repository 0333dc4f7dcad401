"""Faults of whole hosts: they vanish, or lose their power."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.chaos.faults.targets import MISSED, InjectedFault, Targets
from tests.lab.faults.targets import AGENT_HOSTS, DATABASE_HOSTS, HOSTS, PRODUCER_HOSTS, LabTargets, lab
from tests.lab.servers import STORE_HOSTS, may_promote


def _a_host(at: LabTargets, rng: random.Random, hosts: Sequence[str]) -> str | None:
    free = sorted({host for host in hosts if host not in at.busy})
    return rng.choice(free) if free else None


# ---------------------------------------------------------------- hosts that vanish


def vanish_agents(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _vanish_clients(targets, rng, seconds, list(AGENT_HOSTS.values()))


def vanish_producer(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _vanish_clients(targets, rng, seconds, list(PRODUCER_HOSTS.values()))._replace(pids=())


def _vanish_clients(targets: Targets, rng: random.Random, seconds: float, hosts: Sequence[str]) -> InjectedFault:
    at = lab(targets)
    host = _a_host(at, rng, hosts)
    if host is None:
        return MISSED
    pids = at.vanish(host, seconds)

    def heal() -> None:
        at.appear(host)
        at.release(host)

    return InjectedFault(f"{host} for {seconds:g} s", heal, pids=pids)


def vanish_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Its written pages stay with the kernel."""
    return _down_store(targets, rng, seconds, power=False)


def vanish_primary(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Promoted at once; the host comes back as the standby of the new primary."""
    at, servers = lab(targets), lab(targets).lab_servers
    if DATABASE_HOSTS & at.busy or not may_promote(servers):
        return MISSED
    host = servers.primary_host
    at.busy.update(DATABASE_HOSTS)
    at.vanish(host, seconds)
    servers.promote()

    def heal() -> None:
        at.appear(host)
        servers.attach_standby()
        at.release(*DATABASE_HOSTS)

    return InjectedFault(f"{host} for {seconds:g} s, {servers.primary_host} promoted", heal)


def vanish_standby(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Commits wait until it is back."""
    return _down_databases(targets, rng, seconds, [lab(targets).lab_servers.standby_host], power=False)


# ---------------------------------------------------------------- hosts that lose their power


def cut_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _down_store(targets, rng, seconds, power=True)


def cut_primary(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """It comes back as the primary: nothing is promoted."""
    return _down_databases(targets, rng, seconds, [lab(targets).lab_servers.primary_host], power=True)


def cut_standby(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _down_databases(targets, rng, seconds, [lab(targets).lab_servers.standby_host], power=True)


def cut_databases(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _down_databases(targets, rng, seconds, sorted(DATABASE_HOSTS), power=True)


def cut_all(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Every host at once."""
    at, servers = lab(targets), lab(targets).lab_servers
    if at.busy.intersection(HOSTS):
        return MISSED
    told = _down(at, rng, HOSTS, seconds, power=True)

    def heal() -> None:
        _back(at, HOSTS, power=True)
        for name in STORE_HOSTS:
            servers.up(name)
        servers.up("master")
        servers.restart_standby()
        at.release(*HOSTS)

    return InjectedFault(f"all hosts for {seconds:g} s, {told}", heal)


def _down(at: LabTargets, rng: random.Random, hosts: Sequence[str], seconds: float, *, power: bool) -> str:
    """No packet gets out any more; at a cut of the power the disks are gone next; then every process. What the disks lost."""
    at.busy.update(hosts)
    told = ""
    if power:
        for host in hosts:
            at.net.link_down(host)
        told = at.lab_servers.cut_power(hosts, rng)
    for host in hosts:
        at.vanish(host, seconds)
    return told


def _back(at: LabTargets, hosts: Sequence[str], *, power: bool) -> None:
    """The hosts are there, with what is on their disks; no server runs yet."""
    if power:
        at.lab_servers.restore_power(hosts)
    for host in hosts:
        at.appear(host)
        if power:
            at.net.link_up(host)


def _down_store(targets: Targets, rng: random.Random, seconds: float, *, power: bool) -> InjectedFault:
    at, servers = lab(targets), lab(targets).lab_servers
    host = _a_host(at, rng, list(STORE_HOSTS.values()))
    if host is None:
        return MISSED
    name = next(store for store, there in STORE_HOSTS.items() if there == host)
    told = _down(at, rng, [host], seconds, power=power)

    def heal() -> None:
        _back(at, [host], power=power)
        servers.up(name)
        at.release(host)

    return InjectedFault(f"{host} for {seconds:g} s {told}".strip(), heal, store=name)


def _down_databases(
    targets: Targets, rng: random.Random, seconds: float, hosts: Sequence[str], *, power: bool
) -> InjectedFault:
    """They come back as what they were; while one is away, commits wait."""
    at, servers = lab(targets), lab(targets).lab_servers
    if DATABASE_HOSTS & at.busy:
        return MISSED
    at.busy.update(DATABASE_HOSTS)
    told = _down(at, rng, hosts, seconds, power=power)

    def heal() -> None:
        _back(at, hosts, power=power)
        if servers.primary_host in hosts:
            servers.up("master")
        servers.restart_standby()
        at.release(*DATABASE_HOSTS)

    return InjectedFault(f"{'+'.join(hosts)} for {seconds:g} s {told}".strip(), heal)
