"""Faults of the network, between one client and all servers, or between all clients and one server."""

from __future__ import annotations

import random

from tests.chaos.faults.targets import InjectedFault, Targets
from tests.support.proxy.tcp_proxy import Fault


def _routes(targets: Targets, rng: random.Random) -> str:
    """One agent from one server, one agent from all, or all clients from one server."""
    server = rng.choice(("master", *targets.servers.single_stores))
    agent = rng.choice(targets.fleet.agents)
    return rng.choice(
        (f"{agent}.{server}", f"{agent}.{server}", f"{agent}.*", f"*.{server}", f"{targets.producers[0]}.*")
    )


def _on(targets: Targets, routes: str, fault: Fault, said: str, *, reset_after: bool = False) -> InjectedFault:
    targets.proxy.set(routes, fault)

    def heal() -> None:
        targets.proxy.set(routes)
        if reset_after:
            targets.proxy.reset(routes)

    return InjectedFault(f"{routes} {said}", heal)


def slow(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    delay, jitter = rng.uniform(0.005, 0.12), rng.uniform(0.0, 0.15)
    return _on(targets, _routes(targets, rng), Fault(delay_seconds=delay, jitter_seconds=jitter), f"{delay:.3f} s")


def narrow(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    rate = rng.choice((20_000, 100_000, 400_000))
    return _on(targets, _routes(targets, rng), Fault(bytes_per_second=rate), f"{rate} bytes/s")


def cut(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    routes = _routes(targets, rng)
    return InjectedFault(f"{routes}: {targets.proxy.reset(routes)} routes")


def hold_requests(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    after = rng.random() < 0.5
    return _on(targets, _routes(targets, rng), Fault(hold_up=True), f"for {seconds:g} s", reset_after=after)


def hold_answers(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    after = rng.random() < 0.5
    return _on(targets, _routes(targets, rng), Fault(hold_down=True), f"for {seconds:g} s", reset_after=after)


def half_open(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _on(targets, _routes(targets, rng), Fault(half_open=True), f"for {seconds:g} s")


def refuse(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    routes = _routes(targets, rng)
    injected = _on(targets, routes, Fault(refuse=True), f"for {seconds:g} s")
    targets.proxy.reset(routes)
    return injected


def lose_replies(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    count = rng.randint(1, 12)
    routes = rng.choice(("*.master", *(f"*.{store}" for store in targets.servers.single_stores), "*"))
    return _on(targets, routes, Fault(drop_replies=count), f"{count} each")
