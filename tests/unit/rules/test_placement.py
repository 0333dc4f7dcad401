"""The route of a job, and how two random choices spread jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from jobmaster.model.job import Durability
from jobmaster.rules.placement import Route, first_gets_job, route, two_choices

NOW = 1_800_000_000_000_000
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("due_us", "durability", "expected"),
    [
        (0, Durability.STORE, Route.BUCKET),
        (0, Durability.STORE_FSYNC, Route.BUCKET),
        (0, Durability.MASTER, Route.MASTER_THEN_BUCKET),
        (NOW - MINUTE, Durability.STORE, Route.BUCKET),
        (NOW - MINUTE, Durability.MASTER, Route.MASTER_THEN_BUCKET),
        (NOW + 5 * MINUTE, Durability.STORE, Route.BUCKET),
        (NOW + 5 * MINUTE + 1, Durability.STORE, Route.HELD),
        (NOW + 5 * MINUTE + 1, Durability.STORE_FSYNC, Route.HELD),
        (NOW + 1, Durability.MASTER, Route.HELD),
        (NOW + 60 * MINUTE, Durability.MASTER, Route.HELD),
    ],
)
def test_the_way_of_a_job(due_us: int, durability: Durability, expected: Route) -> None:
    assert route(due_us, NOW, 300.0, durability) is expected


def choose(loads: Sequence[int], first: float, second: float, shares: Sequence[float] | None = None) -> int:
    one, other = two_choices(len(loads), first, second, shares)
    each = shares or [1.0] * len(loads)
    return one if first_gets_job(loads[one], each[one], loads[other], each[other]) else other


def test_of_two_buckets_the_emptier_is_taken_for_every_random_value() -> None:
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


DICE = [step / 100 for step in range(100)]


@pytest.mark.parametrize("shares", [None, [1.0, 1.0, 1.0], [0.1, 5.0, 1.0]])
def test_two_different_places_are_drawn_whatever_the_shares(shares: list[float] | None) -> None:
    drawn = {two_choices(3, first, second, shares) for first in DICE for second in [*DICE, 1 - 1e-16]}
    assert drawn == {(one, other) for one in range(3) for other in range(3) if one != other}


@pytest.mark.parametrize("rate", [0, 3], ids=["idle", "busy"])
def test_jobs_are_spread_by_shares_while_buckets_are_idle_and_while_they_are_busy(rate: int) -> None:
    """Idle: jobs are gone before the next ones come, and the last answers of their buckets name some. Busy: nothing goes."""
    chance = random.Random(7)
    shares = [1.0, 1.0, 2.0, 6.0]
    loads, got = [0] * 4, [0] * 4
    for _ in range(20_000):
        place = choose(loads, chance.random(), chance.random(), shares)
        got[place] += 1
        loads[place] = loads[place] + 1 if rate else chance.randrange(10)
    for count, share in zip(got, shares, strict=True):
        assert count == pytest.approx(2000 * share, rel=0.1)


def test_of_two_buckets_the_one_with_less_for_its_share_is_taken() -> None:
    for first in DICE:
        assert choose([100, 180], first, 0.0, [1.0, 2.0]) == 1
        assert choose([90, 180], first, 0.0, [1.0, 2.0]) == 0
