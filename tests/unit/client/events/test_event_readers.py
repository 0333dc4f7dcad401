"""Readers of events, with a master and a store that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from jobmaster.client.events.cursor import cursor_of, place_of
from jobmaster.client.events.filters import EventChooser, EventFilter
from jobmaster.client.events.listener import Listener
from jobmaster.client.events.stream import REST, EventStream
from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_headers
from jobmaster.model.errors import Unavailable
from jobmaster.model.event import BucketEvent, ClusterEvent, EventKind, JobEvent, MissedEvents
from jobmaster.model.job import Headers, JobState
from jobmaster.ports import ChangedJob, EventPage, EventPlace
from tests.support.hand_clock import HandClock
from tests.support.patience import PATIENCE_SECONDS

PLACE = EventPlace("1", "00000001", 10, 10, "")


def event_of(job_id: bytes, kind: EventKind = EventKind.JOB_SUCCEEDED) -> JobEvent:
    return JobEvent(
        kind=kind, at_us=1, id_bytes=job_id, handler="pay", lane="default", priority=None, token=1
    )  # fmt: skip


class Master:
    """The events of a master; ``answers`` are given in turn, an error is raised."""

    def __init__(self) -> None:
        self.answers: list[EventPage | Exception] = []
        self.read_after: list[EventPlace] = []
        self.away = 0
        self.now = PLACE
        self.states: dict[bytes, JobState] = {}
        self.reads: list[list[bytes]] = []
        self.on_read: Callable[[], None] = lambda: None

    async def place(self, *, start: bool) -> EventPlace:
        return self.now

    async def read(
        self, after: EventPlace, kinds: Sequence[str] | None, handlers: Sequence[str] | None, limit: int
    ) -> EventPage:
        self.read_after.append(after)
        self.on_read()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def changed(self, job_ids: Sequence[bytes]) -> list[ChangedJob]:
        if job_ids and self.away:
            self.away -= 1
            raise Unavailable("the master is away")
        if job_ids:
            self.reads.append(list(job_ids))
        return [ChangedJob(self.states[job_id], event_of(job_id)) for job_id in job_ids if job_id in self.states]


class Store:
    """What a subscription gives: ids, ``b""`` for its beginning, an error for its end."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def finished(self) -> AsyncIterator[bytes]:
        yield b""
        while True:
            one = await self.news.get()
            if isinstance(one, Exception):
                raise one
            yield one


def listener(master: Master, store: Store, chosen: EventFilter | None = None) -> Listener:
    chooser = EventChooser(chosen or EventFilter(), batches=master)  # type: ignore[arg-type]  # no batch is chosen
    return Listener(master, {"default": store}, SystemClock(), chooser, lambda: None)


async def taken(events: Any, count: int) -> list[ClusterEvent]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(events) for _ in range(count)]


async def test_a_change_that_is_published_twice_is_given_once() -> None:
    master, store = Master(), Store()
    first, second = new_id(), new_id()
    master.states = {first: JobState.PROCESSING, second: JobState.SUCCEEDED}
    async with listener(master, store) as events:
        stream = aiter(events)
        store.news.put_nowait(first)
        await taken(stream, 1)
        store.news.put_nowait(first)
        store.news.put_nowait(second)
        (event,) = await taken(stream, 1)
        assert isinstance(event, JobEvent)
        assert event.id_bytes == second
        master.states[first] = JobState.SUCCEEDED
        store.news.put_nowait(first)
        (event,) = await taken(stream, 1)
        assert isinstance(event, JobEvent)
        assert event.id_bytes == first


async def test_a_broken_subscription_shows_where_events_are_missing() -> None:
    master, store = Master(), Store()
    job_id = new_id()
    master.states = {job_id: JobState.SUCCEEDED}
    async with listener(master, store) as events:
        stream = aiter(events)
        store.news.put_nowait(Unavailable("the store is away"))
        missed, *_ = await taken(stream, 1)
        assert isinstance(missed, MissedEvents)
        assert missed.count is None
        store.news.put_nowait(job_id)
        assert isinstance((await taken(stream, 1))[0], JobEvent)


async def test_while_the_master_is_away_events_wait() -> None:
    master, store = Master(), Store()
    job_id = new_id()
    master.states, master.away = {job_id: JobState.SUCCEEDED}, 2
    async with listener(master, store) as events:
        store.news.put_nowait(job_id)
        assert isinstance((await taken(aiter(events), 1))[0], JobEvent)
    assert master.reads == [[job_id]]


def stream_of(master: Master, after: str | None = None, *, follow: bool = True, **options: Any) -> EventStream:
    chooser = EventChooser(options.pop("chosen", EventFilter()), batches=master)  # type: ignore[arg-type]
    clock = options.pop("clock", SystemClock())
    values: dict[str, Any] = {"interval": 0.1, "accept_failover": False, "refuse_closed": lambda: None, **options}
    return EventStream(master, clock, chooser, after, follow=follow, **values)


def page(*xids: int, end: int, more: bool = False) -> EventPage:
    return EventPage(
        [(PLACE._replace(xid=xid, key="job"), event_of(new_id())) for xid in xids], PLACE._replace(xid=end), more
    )


async def test_a_stream_that_follows_waits_for_the_master_and_another_one_does_not() -> None:
    master = Master()
    master.answers = [Unavailable("away"), page(11, end=12), Unavailable("away")]
    (event,) = await taken(stream_of(master), 1)
    assert place_of(event.cursor) == PLACE._replace(xid=11, key="job")
    with pytest.raises(Unavailable):
        await anext(stream_of(master, event.cursor, follow=False))


async def test_the_cursor_moves_over_events_that_are_not_wanted() -> None:
    master = Master()
    master.answers = [page(11, 12, end=12, more=True), page(13, end=20)]
    stream = stream_of(master, follow=False, chosen=EventFilter(handlers=("other",)))
    assert [event async for event in stream] == []
    assert stream.cursor == cursor_of(PLACE._replace(xid=20))
    assert [place.xid for place in master.read_after] == [10, 12]


async def test_a_bounded_stream_ends_where_another_one_goes_on() -> None:
    master, clock = Master(), HandClock()
    master.answers = [page(11, 12, end=12, more=True), page(12, 13, end=20)]
    stream = stream_of(master, follow=False, clock=clock, chosen=EventFilter(handlers=("other",))).bounded(0.0)
    assert [event async for event in stream] == []
    assert (stream.more, stream.cursor) == (True, cursor_of(PLACE._replace(xid=12)))
    other = stream_of(master, stream.cursor, follow=False, clock=clock).bounded(0.0)
    assert len([event async for event in other]) == 2
    assert (other.more, other.cursor) == (False, cursor_of(PLACE._replace(xid=20)))
    assert [place.xid for place in master.read_after] == [10, 12]


async def test_a_look_that_takes_long_is_followed_by_a_longer_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("jobmaster.client.events.stream.asyncio.sleep", sleep)
    master, clock = Master(), HandClock()
    master.answers = [page(end=11), page(12, end=13)]

    def takes_long() -> None:
        clock.now += 2.0

    master.on_read = takes_long
    await taken(stream_of(master, clock=clock), 1)
    assert rests == [REST * 2.0]


async def test_a_cursor_of_an_earlier_timeline_is_continued_when_that_is_accepted() -> None:
    master = Master()
    master.now = PLACE._replace(timeline="00000002", xid=30)
    master.answers = [page(end=31), page(end=31)]
    early, late = PLACE._replace(xid=20, key="job"), PLACE._replace(xid=40, key="job")
    for place in (early, late):
        stream = stream_of(master, cursor_of(place), follow=False, accept_failover=True)
        assert [event async for event in stream] == []
    assert master.read_after == [
        early._replace(timeline="00000002"),
        late._replace(timeline="00000002", xid=30, key=""),
    ]


def test_jobs_are_chosen_by_what_their_headers_say() -> None:
    workflow = "019a9f3c-55d1-7000-8000-000000000000"
    headers = Headers(tags=("a", "b"), tenant=("acme",), workflow=(workflow, 3))
    event = msgspec.structs.replace(event_of(new_id()), headers_json=encode_headers(headers))
    for chosen, admitted in (
        (EventFilter(tag="b"), True),
        (EventFilter(tag="c"), False),
        (EventFilter(tenant="acme"), True),
        (EventFilter(tenant="other"), False),
        (EventFilter(workflow=workflow), True),
        (EventFilter(workflow="other"), False),
        (EventFilter(batch=event.id_bytes), False),
        (EventFilter(handlers=("pay",), kinds=("job_succeeded",)), True),
        (EventFilter(kinds=("job_failed",)), False),
    ):
        assert chosen.admits(event) is admitted, chosen
    missed = MissedEvents(kind=EventKind.MISSED, at_us=1, count=1)
    assert EventFilter(tag="c").admits(missed)
    bucket = BucketEvent(kind=EventKind.BUCKET_CHANGED, at_us=1, bucket_id=new_id(), state="LOST", reason="test")
    assert EventFilter().admits(bucket)
    assert not EventFilter(tag="b").admits(bucket)
