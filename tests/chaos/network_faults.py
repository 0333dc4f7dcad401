"""Faults of the network, between one client and all servers, or between everybody and one server."""

from __future__ import annotations

import random

from tests.chaos.hit import Hit, Stage
from tests.chaos.servers import STORES
from tests.support.proxy.tcp_proxy import Fault


def _routes(stage: Stage, rng: random.Random) -> str:
    """One agent from one server, one agent from all, or everybody from one server."""
    server = rng.choice(("master", *STORES))
    agent = rng.choice(stage.fleet.agents)
    return rng.choice(
        (f"{agent}.{server}", f"{agent}.{server}", f"{agent}.*", f"*.{server}", f"{stage.producers[0]}.*")
    )


def _on(stage: Stage, routes: str, fault: Fault, said: str, *, reset_after: bool = False) -> Hit:
    stage.proxy.set(routes, fault)

    def heal() -> None:
        stage.proxy.set(routes)
        if reset_after:
            stage.proxy.reset(routes)

    return Hit(f"{routes} {said}", heal)


def slow(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    delay, jitter = rng.uniform(0.005, 0.12), rng.uniform(0.0, 0.15)
    return _on(stage, _routes(stage, rng), Fault(delay_seconds=delay, jitter_seconds=jitter), f"{delay:.3f} s")


def narrow(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    rate = rng.choice((20_000, 100_000, 400_000))
    return _on(stage, _routes(stage, rng), Fault(bytes_per_second=rate), f"{rate} bytes/s")


def cut(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    routes = _routes(stage, rng)
    return Hit(f"{routes}: {stage.proxy.reset(routes)} routes")


def hold_requests(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    after = rng.random() < 0.5
    return _on(stage, _routes(stage, rng), Fault(hold_up=True), f"for {seconds:g} s", reset_after=after)


def hold_answers(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    after = rng.random() < 0.5
    return _on(stage, _routes(stage, rng), Fault(hold_down=True), f"for {seconds:g} s", reset_after=after)


def half_open(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    return _on(stage, _routes(stage, rng), Fault(half_open=True), f"for {seconds:g} s")


def refuse(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    routes = _routes(stage, rng)
    hit = _on(stage, routes, Fault(refuse=True), f"for {seconds:g} s")
    stage.proxy.reset(routes)
    return hit


def lose_replies(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    count = rng.randint(1, 12)
    routes = rng.choice(("*.master", *(f"*.{store}" for store in STORES), "*"))
    return _on(stage, routes, Fault(drop_replies=count), f"{count} each")
