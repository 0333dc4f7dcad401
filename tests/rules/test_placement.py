"""Which way a job goes, and that two random choices spread jobs."""

from __future__ import annotations

import random

import pytest

from jobmaster.model.job import Durability
from jobmaster.rules.placement import Way, choose, way

NOW = 1_800_000_000_000_000
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("due_us", "durability", "expected"),
    [
        (0, Durability.AGENT, Way.BUCKET),
        (0, Durability.AGENT_FSYNC, Way.BUCKET),
        (0, Durability.MASTER, Way.MASTER_THEN_BUCKET),
        (NOW - MINUTE, Durability.AGENT, Way.BUCKET),
        (NOW - MINUTE, Durability.MASTER, Way.MASTER_THEN_BUCKET),
        (NOW + 5 * MINUTE, Durability.AGENT, Way.BUCKET),
        (NOW + 5 * MINUTE + 1, Durability.AGENT, Way.HELD),
        (NOW + 5 * MINUTE + 1, Durability.AGENT_FSYNC, Way.HELD),
        (NOW + 1, Durability.MASTER, Way.HELD),
        (NOW + 60 * MINUTE, Durability.MASTER, Way.HELD),
    ],
)
def test_the_way_of_a_job(due_us: int, durability: Durability, expected: Way) -> None:
    assert way(due_us, NOW, 300.0, durability) is expected


def test_of_two_buckets_the_emptier_is_taken_whatever_the_dice_say() -> None:
    for first in (0.0, 0.3, 0.6, 0.999):
        for second in (0.0, 0.5, 0.999):
            assert choose([7, 3], first, second) == 1
            assert choose([3, 7], first, second) == 0


def test_the_two_looked_at_are_never_the_same_bucket() -> None:
    # Were they the same, the fullest of three could win by being drawn twice.
    for first in range(100):
        for second in range(100):
            assert choose([1, 2, 3], first / 100, second / 100) != 2


def test_two_choices_spread_better_than_one() -> None:
    chance = random.Random(7)
    loads = [0] * 50
    for _ in range(50_000):
        loads[choose(loads, chance.random(), chance.random())] += 1
    assert max(loads) - min(loads) < 20
