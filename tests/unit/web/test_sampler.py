"""What viewers cost: fifty as much as one, none nothing; and what one gets who comes late, or comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from jobmaster.model.errors import Unavailable
from jobmaster.model.inspection.views import Buckets
from jobmaster.web.pages import sampler as module
from jobmaster.web.pages.live import event_stream, polled
from jobmaster.web.pages.map_state import AgentSample, BucketSample
from jobmaster.web.pages.sampler import LINGER_SECONDS, Sampler
from jobmaster.web.pages.samples import Sample, Totals
from tests.support.hand_clock import HandClock
from tests.support.waiting import until


class Cluster:
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.rests = 0
        self.down = False

    async def read(self) -> Sample:
        self.reads += 1
        if self.down:
            raise Unavailable("the master does not answer")
        agent = AgentSample("a", "a", "h", "default", "full", "ACTIVE", "1", 0, 10.0)
        bucket = BucketSample("b", "default", 3, "default", "a", 1, "ACTIVE", self.reads, 0)
        totals = Totals(self.reads * 1_000_000, (), 1, 1, None, None, 0, (), 0)
        return Sample(totals, (agent,), (bucket,), (), Buckets(buckets=(), silent=()))

    async def rest(self) -> None:
        self.rests += 1


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def sampler(cluster: Cluster, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sampler]:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.001)
    stopping = asyncio.Event()
    yield Sampler(cluster.read, cluster.rest, lambda line: f"<p>{len(line)}</p>", clock, stopping)
    stopping.set()
    await until(lambda: cluster.rests > 0 or cluster.reads == 0)


def maps_of(events: list[Any]) -> list[dict[str, Any]]:
    lines = b"".join(events).decode().split("\n")
    return [msgspec.json.decode(line[6:]) for line in lines if line.startswith("data: {")]


async def watch(sampler: Sampler, ticks: int, after: int | None = None) -> list[dict[str, Any]]:
    """The maps that a viewer gets, until there are so many."""
    events: list[Any] = []
    async for part in event_stream(sampler, after).body_iterator:
        events.append(part)
        if len(maps_of(events)) == ticks:
            break
    return maps_of(events)


async def test_fifty_viewers_are_one_reader(sampler: Sampler, cluster: Cluster) -> None:
    seen = await asyncio.gather(*(watch(sampler, 5) for _ in range(50)))
    assert all(maps[0]["whole"] and not any(each.get("whole") for each in maps[1:]) for maps in seen)
    assert cluster.reads <= max(maps[-1]["set"][0][2] for maps in seen) + 1


async def test_without_viewers_nothing_is_read_and_the_connection_is_given_back(
    sampler: Sampler, cluster: Cluster, clock: HandClock
) -> None:
    assert cluster.reads == 0
    await sampler.latest()
    clock.now += LINGER_SECONDS + 1
    await until(lambda: not sampler.running)
    assert cluster.rests == 1
    before = cluster.reads
    await sampler.latest()
    assert cluster.reads > before


async def test_a_viewer_who_comes_back_gets_what_was_missed_and_a_stranger_gets_the_whole(sampler: Sampler) -> None:
    last = (await watch(sampler, 3))[-1]["seq"]
    back = await watch(sampler, 3, after=last)
    assert [each["seq"] for each in back] == [last + 1, last + 2, last + 3]
    assert not any(each.get("whole") for each in back)
    assert (await watch(sampler, 1, after=7))[0]["whole"]


async def test_polling_gives_the_same_as_the_stream(sampler: Sampler) -> None:
    whole = msgspec.json.decode((await polled(sampler, None)).body)
    assert len(whole) == 1
    await watch(sampler, 3)
    missed = msgspec.json.decode((await polled(sampler, str(whole[0]["seq"]))).body)
    assert [each["seq"] for each in missed] == [whole[0]["seq"] + 1 + at for at in range(len(missed))]
    assert len(missed) >= 2


async def test_an_outage_is_told_and_the_whole_follows_it(sampler: Sampler, cluster: Cluster) -> None:
    stream = event_stream(sampler, None).body_iterator
    events: list[Any] = []
    async for part in stream:
        events.append(part)
        maps = len(maps_of(events))
        cluster.down = maps == 2 and b"stale" not in events[-1]
        if maps == 3:
            break
    assert any(b"event: stale" in part for part in events)
    assert maps_of(events)[2]["whole"]
    cluster.down = True
    await until(lambda: sampler.failure is not None)
    with pytest.raises(Unavailable):
        await sampler.latest()
