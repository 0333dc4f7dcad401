"""Events for programs: as they happen, and as recorded, with a cursor to continue from."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from jobmaster.client.sync import SyncCluster
from jobmaster.clock import new_id
from jobmaster.model.errors import InputError, JobMasterError, UnknownHandler
from jobmaster.model.event import ClusterEvent, EventKind, JobEvent, MissedEvents
from jobmaster.model.job import ErrorInfo, HoldRow, InFlightRow, JobState
from tests.integration.client.fixture import ClientFixture, pay, resize
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually, until


async def taken(events: Any, count: int) -> list[ClusterEvent]:
    """The next events."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(events) for _ in range(count)]


async def test_a_listener_gets_what_agents_publish_from_its_entry_on(client: ClientFixture) -> None:
    await client.cluster.submit(resize, {"path": "before"})
    await client.agent.work_off()
    async with client.cluster.listen(handler=resize, tag="wanted") as listener:
        events = aiter(listener)
        await client.cluster.submit(resize, {"path": "other"})
        wanted = await client.cluster.submit(resize, {"path": "a"}, tags=["wanted"])
        await client.agent.work_off()
        failing = await client.cluster.submit(resize, {"path": "b"}, tags=["wanted"])
        for bucket in client.agent.buckets["default", 3]:
            claimed = await client.agent.claim(bucket)
            error = ErrorInfo(type="ValueError", message="no")
            await client.agent.finish(bucket, claimed, state=JobState.FAILED, error=error)
        first, second = await taken(events, 2)
    assert isinstance(first, JobEvent)
    assert isinstance(second, JobEvent)
    assert (first.kind, first.id, first.tags, first.cursor) == (EventKind.JOB_SUCCEEDED, wanted.id, ("wanted",), "")
    assert (second.kind, second.id, second.error is not None) == (EventKind.JOB_FAILED, failing.id, True)


async def test_a_run_that_lasts_and_a_job_that_is_given_back_are_shown(client: ClientFixture) -> None:
    agent = client.agent
    (bucket, *_) = agent.buckets["default", 3]
    async with client.cluster.listen(kinds=["job_started", "job_waits"]) as listener:
        events = aiter(listener)
        job_id = new_id()
        row = InFlightRow(job_id, "PROCESSING", 3, "default", "pay", 1, 0, 0, 0, b"{}", b"")
        held = HoldRow(job_id, 3, "default", "pay", 1, 0, 0, 0, b"{}", b"", None, 0)
        outcomes, fence = agent.master.outcomes, agent.fence(bucket)
        assert (await outcomes.persist(fence, [row])).accepted == {job_id}
        await agent.store.settle(fence, [], [job_id])
        (started,) = await taken(events, 1)
        assert (await outcomes.hold(fence, [held])).accepted == {job_id}
        await agent.store.settle(fence, [], [job_id])
        (waits,) = await taken(events, 1)
    assert (started.kind, waits.kind) == (EventKind.JOB_STARTED, EventKind.JOB_WAITS)


async def test_a_slow_reader_loses_the_oldest_and_is_told_how_many(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.client.events.listener.BUFFER_JOBS", 3)
    async with client.cluster.listen() as listener:
        receipts = [await client.cluster.submit(resize, {"path": str(number)}) for number in range(8)]
        await client.agent.work_off()
        await client.cluster.wait(receipts[-1], timeout=PATIENCE_SECONDS)
        missed, *rest = await taken(aiter(listener), 4)
    assert isinstance(missed, MissedEvents)
    assert missed.count == 5
    assert len({event.id for event in rest if isinstance(event, JobEvent)}) == 3


async def test_a_stream_continues_after_any_cursor(client: ClientFixture) -> None:
    stream = client.cluster.events(interval=0.1, kinds="job_succeeded")
    reading = asyncio.ensure_future(taken(stream, 6))
    await until(lambda: stream.cursor is not None)  # the first look decides what "from now on" means
    receipts = [await client.cluster.submit(resize, {"path": str(number)}) for number in range(6)]
    await client.agent.work_off()
    events = await reading
    assert {event.id for event in events if isinstance(event, JobEvent)} == {receipt.id for receipt in receipts}
    for number, event in enumerate(events):
        rest = [each async for each in client.cluster.events(event.cursor, follow=False, kinds="job_succeeded")]
        assert rest == events[number + 1 :]
    assert len([each async for each in client.cluster.events("start", follow=False, handler="pay")]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "x"}, "'x' is no cursor of the events of a cluster"),
        ({"after": "bm90aGluZw"}, "is no cursor"),
        ({"after": 7}, "7 is no cursor"),
        ({"interval": 0}, "'interval' must be seconds, at least 0.1, not 0"),
        ({"kinds": "job_started"}, r"events\(\) gives no events of the kind 'job_started'"),
        ({"kinds": []}, "'kinds' is empty"),
        ({"handlers": "pay"}, r"events\(\) has no filter 'handlers'"),
        ({"batch": 7}, "'batch' must be an id"),
        ({"workflow": "x"}, "'workflow' must be an id"),
        ({"tag": ""}, "'tag'"),
        ({"tenant": ""}, "tenant"),
    ],
)
async def test_what_no_stream_can_give_is_refused(client: ClientFixture, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        client.cluster.events(**options)


async def test_functions_that_are_no_handlers_are_refused(client: ClientFixture) -> None:
    with pytest.raises(UnknownHandler, match="taken"):
        client.cluster.listen(handler=[pay, taken])


async def test_a_batch_is_chosen_with_all_of_its_ranges(client: ClientFixture) -> None:
    stream = client.cluster.events(interval=0.1)
    async with client.cluster.batch("numbers") as batch:
        for number in range(3):
            await batch.submit(resize, {"path": str(number)})
    await client.cluster.submit(resize, {"path": "beside"})
    await client.agent.work_off()
    del stream
    # An event is left out for as long as an older transaction of any program runs in this server.
    found: list[Any] = []

    async def read() -> bool:
        events = client.cluster.events("start", follow=False, batch=batch.id, kinds="job_succeeded")
        found[:] = [each async for each in events]
        return len(found) >= 3

    await eventually(read, 60, "the events of three jobs")
    assert len(found) == 3


async def test_without_an_event_loop(client: ClientFixture, plain: SyncCluster) -> None:
    got: list[ClusterEvent] = []
    entered = threading.Event()

    def listen() -> None:
        with plain.listen() as listener:
            entered.set()
            for event in listener:
                got.append(event)
                return

    reading = asyncio.get_running_loop().run_in_executor(None, listen)
    await asyncio.to_thread(entered.wait)
    receipt = await client.cluster.submit(resize, {"path": "a"})
    await client.agent.work_off()
    await reading
    assert isinstance(got[0], JobEvent)
    assert got[0].id == receipt.id

    def recorded() -> list[ClusterEvent]:
        stream = plain.events("start", follow=False, kinds="job_succeeded")
        events = list(stream)
        assert list(plain.events(stream.cursor, follow=False, kinds="job_succeeded")) == []
        return events

    while not (events := await asyncio.to_thread(recorded)):
        pass  # each look is a round trip; transactions of other tests on the server hold events back
    assert [event.id for event in events if isinstance(event, JobEvent)] == [receipt.id]


async def test_readers_of_a_cluster_that_is_closed_end(client: ClientFixture) -> None:
    stream = client.cluster.events(interval=0.1)
    reading = asyncio.ensure_future(taken(stream, 1))
    await until(lambda: stream.cursor is not None)
    await client.cluster.close()
    with pytest.raises(JobMasterError, match="the cluster is closed"):
        await reading
