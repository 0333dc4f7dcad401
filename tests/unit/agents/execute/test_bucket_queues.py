"""Jobs that have waited long in the store, against a stream of more urgent ones: the bounds of ``rules.priority_order``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from jobmaster.handlers import Handlers
from jobmaster.model.job import Entry, Priority
from jobmaster.settings.model import AgentSettings
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import WorkerHarness
from tests.support.waiting import until

HOUR = 3600.0
OLD = 5000
numbers = itertools.count()
order: list[str] = []
handlers = Handlers()


@handlers.job(name="low")
async def low() -> None:
    order.append("low")


@handlers.job(name="critical")
async def critical() -> None:
    order.append("critical")
    await asyncio.sleep(0)


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    order.clear()
    made = WorkerHarness(handlers, AgentSettings(max_running=1))
    made.clock.now = 10 * HOUR
    made.trust()
    async with made:
        yield made


def made_at(harness: WorkerHarness, name: str, age_seconds: float) -> Entry:
    """A job whose age only its id shows."""
    created_ms = (harness.clock.wall_us() - int(age_seconds * 1e6)) // 1000
    return Entry(created_ms.to_bytes(6, "big") + next(numbers).to_bytes(10, "big"), 1, name, b"{}")


def due_at(harness: WorkerHarness, name: str, age_seconds: float) -> Entry:
    """A job that was made long before it was due."""
    entry = made_at(harness, name, 9 * HOUR)
    return Entry(entry.id, 1, name, b"{}", due_us=harness.clock.wall_us() - int(age_seconds * 1e6))


class Stream:
    """Keeps more critical jobs waiting than the agent can run."""

    def __init__(self, harness: WorkerHarness, bucket: OwnedBucket) -> None:
        self.harness, self.bucket, self.sent = harness, bucket, 0

    def top_up(self, waiting: int) -> None:
        missing = waiting - (self.sent - order.count("critical"))
        if missing > 0:
            self.harness.submit(self.bucket, [made_at(self.harness, "critical", 0.0) for _ in range(missing)])
            self.sent += missing


async def test_five_thousand_that_waited_an_hour_and_a_stream_of_critical_ones_do_not_starve_each_other(
    harness: WorkerHarness,
) -> None:
    old, urgent = harness.bucket(Priority.LOW), harness.bucket(Priority.CRITICAL)
    stream = Stream(harness, urgent)
    stream.top_up(500)
    harness.submit(old, [made_at(harness, "low", HOUR) for _ in range(OLD)])
    await until(lambda: harness.bucket_worker.executor.backlog(old.fence.bucket_id), "the first old jobs to be claimed")
    began = len(order)
    while order.count("low") < OLD:
        stream.top_up(500)
        await asyncio.sleep(0)
    starts = order[began:]
    assert len(starts) <= 2 * (OLD + 1) + 100, "at least every second start is one of theirs"
    last = len(starts) - 1 - starts[::-1].index("low")
    urgent_starts = starts[: last + 1].count("critical")
    assert urgent_starts >= OLD - 100, "at least every second start is a critical one"
    longest = max(len(list(run)) for what, run in itertools.groupby(starts[: last + 1]) if what == "low")
    assert longest <= 2, "age lifts one job and not a portion"
    await harness.settled()


@pytest.mark.parametrize("age_seconds", [0.0, 2600.0])
@pytest.mark.parametrize("make", [made_at, due_at], ids=["made", "due"])
async def test_what_has_not_waited_so_long_waits_for_every_critical_one(
    harness: WorkerHarness, make: object, age_seconds: float
) -> None:
    old, urgent = harness.bucket(Priority.LOW), harness.bucket(Priority.CRITICAL)
    harness.submit(urgent, [made_at(harness, "critical", 0.0) for _ in range(300)])
    harness.submit(old, [make(harness, "low", age_seconds) for _ in range(20)])  # type: ignore[operator]
    await harness.settled()
    assert order.index("low") >= 250, "but for what was begun before they were claimed"


async def test_age_counts_from_the_due_time(harness: WorkerHarness) -> None:
    old, urgent = harness.bucket(Priority.LOW), harness.bucket(Priority.CRITICAL)
    harness.submit(urgent, [made_at(harness, "critical", 0.0) for _ in range(300)])
    harness.submit(old, [due_at(harness, "low", HOUR) for _ in range(20)])
    await harness.settled()
    assert order.index("low") < 100
