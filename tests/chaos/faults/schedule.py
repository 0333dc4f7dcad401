"""The schedule of faults of one seed: quiet, a mix of faults, healed, quiet. Every kind comes before any comes twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

QUIET_SECONDS = (1.5, 4.0)
LONG_QUIET_SECONDS = (6.0, 12.0)
MIX = (1, 1, 2, 2, 3)
"""Number of faults at once; one of these is drawn."""


class Planned(msgspec.Struct, frozen=True):
    """One fault to come."""

    kind: str
    at: float
    """Seconds after the start of the load."""
    seconds: float
    """How long it lasts; its meaning depends on the kind, and some kinds ignore it."""
    seed: int
    """Everything else about the fault is drawn from it, such as its target."""


def plan(seed: int, seconds: float, kinds: Sequence[str], longest: dict[str, float]) -> list[Planned]:
    """The faults of a run.

    Args:
        longest: kind -> its longest duration; shorter ones down to a quarter are drawn.
    """
    rng = random.Random(seed)
    found: list[Planned] = []
    bag: list[str] = []
    at = rng.uniform(*QUIET_SECONDS)
    while True:
        mix: list[str] = []
        for _ in range(rng.choice(MIX)):
            if not bag:
                bag = rng.sample(list(kinds), len(kinds))
            mix.append(bag.pop())
        end = at
        for number, kind in enumerate(mix):
            began = at + number * rng.uniform(0.2, 1.0)
            lasts = longest[kind] * rng.uniform(0.25, 1.0)
            if began + lasts > seconds:
                return found
            found.append(Planned(kind, round(began, 2), round(lasts, 2), rng.getrandbits(32)))
            end = max(end, began + lasts)
        at = end + rng.uniform(*QUIET_SECONDS)


def plan_long(seed: int, seconds: float, lasting: dict[str, float], first: Sequence[str]) -> list[Planned]:
    """Faults that last several leases, one after the other, to inject beside those of `plan`.

    Args:
        lasting: kind -> its duration.
        first: kinds that come before all others, in this order, as far as they are among `lasting`.
    """
    rng = random.Random(f"{seed}/long")
    found: list[Planned] = []
    others = [kind for kind in lasting if kind not in first]
    bag = rng.sample(others, len(others)) + [kind for kind in reversed(first) if kind in lasting]
    at = rng.uniform(*LONG_QUIET_SECONDS)
    while lasting:
        if not bag:
            bag = rng.sample(list(lasting), len(lasting))
        kind = bag.pop()
        if at + lasting[kind] > seconds:
            return found
        found.append(Planned(kind, round(at, 2), lasting[kind], rng.getrandbits(32)))
        at += lasting[kind] + rng.uniform(*LONG_QUIET_SECONDS)
    return found
