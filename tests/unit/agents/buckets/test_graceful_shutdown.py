"""Graceful exit: everything back in the master, nothing twice, and always an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import Refused
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import Claimed, ReplyStatus
from jobmaster.settings.model import AgentSettings
from jobmaster_agents import call_retry
from jobmaster_agents.buckets import graceful_shutdown
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, WorkerHarness, turns
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

handlers = Handlers()
ran: list[int] = []
go = asyncio.Event()
deaf = asyncio.Event()


@handlers.job(name="note")
async def note() -> None:
    ran.append(0)


@handlers.job(name="wait", timeout=1e6)
async def wait() -> None:
    ran.append(-1)
    await go.wait()


@handlers.job(name="deaf", timeout=1e6)
async def never_listens() -> None:
    ran.append(-2)
    while not deaf.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await deaf.wait()


@handlers.job(name="fenced", start="fenced", timeout=1e6)
async def fenced() -> None:
    ran.append(1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(graceful_shutdown, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(graceful_shutdown, "_RETRY_SECONDS", 0.0)
    ran.clear()
    go.clear()
    deaf.clear()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers) as made:
        yield made
        deaf.set()


def job(name: str = "note") -> Entry:
    return Entry(new_id(), 1, name, b"{}")


def leave(harness: WorkerHarness, bucket: OwnedBucket, grace_seconds: float = 100.0) -> asyncio.Future[list[bytes]]:
    return asyncio.ensure_future(
        harness.bucket_worker.complete([bucket.fence.bucket_id], grace_seconds, "on request of the test")
    )


def is_retired(harness: WorkerHarness, bucket: OwnedBucket) -> bool:
    bucket_id = bucket.fence.bucket_id
    return (
        harness.master.states[bucket_id] is BucketState.READY_TO_DELETE
        and harness.store.buckets[bucket_id].state is BucketState.READY_TO_DELETE
    )


async def test_intake_closes_in_the_master_first(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    move = Gate()
    harness.master.script["move_bucket"].append(move)
    leaving = leave(harness, bucket)
    await move.reached.wait()
    await turns()
    assert not harness.store.of("close_intake")
    move.opened.set()
    assert await leaving == []
    assert is_retired(harness, bucket)


async def test_what_waits_in_the_store_is_flushed_and_what_runs_is_waited_for() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=2, bucket_buffer=0)) as harness:
        bucket = harness.bucket()
        running = [job("wait"), job("wait")]
        waiting = [job() for _ in range(2500)]
        harness.submit(bucket, running + waiting)
        await until(lambda: len(ran) == 2)
        leaving = leave(harness, bucket)
        await until(lambda: sum(row.state == "HELD" for row in harness.master.rows.values()) == len(waiting))
        await turns()
        assert not leaving.done()
        go.set()
        assert await leaving == []
        assert is_retired(harness, bucket)
        assert [harness.master.rows[each.id].state for each in running] == [JobState.SUCCEEDED] * 2
        assert not harness.master.attempts
        assert ran == [-1, -1]


async def test_onboarded_jobs_that_are_not_due_yet_go_back(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = Entry(new_id(), 2, "note", b"{}", harness.clock.wall_us() + 60_000_000)
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, bucket.fence.bucket_id, 1)
    harness.store.buckets[bucket.fence.bucket_id].assigned.append((entry.due_us, entry))
    assert await leave(harness, bucket) == []
    assert is_retired(harness, bucket)
    assert (harness.master.rows[entry.id].state, harness.master.rows[entry.id].due_us) == ("HELD", entry.due_us)


async def test_the_page_is_committed_before_it_is_removed(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = Entry(new_id(), 2, "note", b"{}", harness.clock.wall_us() + 60_000_000)
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, bucket.fence.bucket_id, 1)
    harness.store.buckets[bucket.fence.bucket_id].assigned.append((entry.due_us, entry))
    hold = Gate(LOST)
    harness.master.script["hold"] += [hold, Refused("permission denied for a moment")]
    leaving = leave(harness, bucket)
    await hold.reached.wait()
    await turns()
    assert not harness.store.of("remove_page")
    hold.opened.set()
    assert await leaving == []
    assert harness.master.rows[entry.id].state == "HELD"


async def test_rows_without_a_copy_are_not_left_behind(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    marked = new_id()
    harness.master.rows[marked] = Row("ASSIGNED", 2, bucket.fence.bucket_id, 1)
    assert await leave(harness, bucket) == []
    assert harness.master.rows[marked].state == "HELD"


async def test_a_list_whose_reply_was_lost_is_found_and_given_back(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: harness.store.of("claim"))
    harness.store.script["claim"] += [LOST, Claimed(ReplyStatus.CLOSED, [], [], 0, 0, False, 0)]
    entry = job()
    harness.submit(bucket, [entry])
    await until(lambda: harness.lists(bucket))
    await turns()
    assert await leave(harness, bucket) == []
    assert harness.master.rows[entry.id].state == "HELD"


async def test_at_the_end_of_the_grace_jobs_are_given_back_without_an_attempt(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entries = [job("wait") for _ in range(60)]  # more than there are slots
    harness.submit(bucket, entries)
    await until(lambda: len(ran) == 50)
    leaving = leave(harness, bucket)
    await turns()
    assert not leaving.done()
    harness.clock.now += 101.0
    assert await leaving == []
    assert {harness.master.rows[each.id].state for each in entries} == {"HELD"}
    assert not harness.master.attempts
    assert {row.attempt for _, rows in harness.master.of("hold") for row in rows} == {0}


async def test_a_second_signal_does_not_wait_for_the_grace(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("wait")
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    leaving = leave(harness, bucket, grace_seconds=1e5)
    await turns()
    harness.bucket_worker.graceful_shutdown.hurry.set()
    assert await leaving == []
    assert harness.master.rows[entry.id].state == "HELD"


async def test_no_grace_at_all_still_gives_everything_back(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entries = [job("wait"), job("wait")]
    harness.submit(bucket, entries)
    await until(lambda: len(ran) == 2)
    assert await leave(harness, bucket, grace_seconds=0.0) == []
    assert {harness.master.rows[each.id].state for each in entries} == {"HELD"}


async def test_a_bucket_retires_while_another_is_busy_all_the_time(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    stop = asyncio.Event()

    async def produce() -> None:
        while not stop.is_set():
            harness.submit(two, [job() for _ in range(10)])
            await turns(5)

    producing = asyncio.ensure_future(produce())
    await until(lambda: len(ran) > 20)
    assert await leave(harness, one) == []
    assert is_retired(harness, one)
    stop.set()
    await producing
    await harness.settled()


# ---------------------------------------------------------------- it always ends


async def test_a_handler_that_will_not_stop_leaves_its_bucket_to_the_rescue(harness: WorkerHarness) -> None:
    bucket, other = harness.bucket(), harness.bucket()
    harness.submit(bucket, [job("deaf")])
    await until(lambda: ran)
    ids = [bucket.fence.bucket_id, other.fence.bucket_id]
    leaving = asyncio.ensure_future(harness.bucket_worker.complete(ids, 100.0, "on request of the test"))
    await turns()
    harness.clock.now += 101.0
    await turns()
    harness.clock.now += graceful_shutdown._STOP_SECONDS + 1.0
    assert await leaving == [bucket.fence.bucket_id]
    assert is_retired(harness, other), "one deaf handler holds up no other bucket"
    assert harness.lists(bucket), "the list keeps the job for the rescuer"


@pytest.mark.parametrize("where", ["move_bucket", "close_intake", "close_if_empty"])
async def test_a_server_that_stays_away_does_not_hold_up_the_exit(harness: WorkerHarness, where: str) -> None:
    bucket = harness.bucket()
    port = harness.master if where == "move_bucket" else harness.store
    port.script[where] += [DOWN] * 100_000
    leaving = leave(harness, bucket)
    await until(lambda: len(port.of(where)) > 3)
    harness.clock.now += 1000.0
    assert await leaving == [bucket.fence.bucket_id]


async def test_a_write_that_never_gets_its_answer_does_not_hold_up_the_exit(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graceful_shutdown, "_STOP_SECONDS", 0.05)
    monkeypatch.setattr(graceful_shutdown, "_RETIRE_SECONDS", 0.0)
    one, two = harness.bucket(), harness.bucket()
    copy, hold = Gate(), Gate()
    harness.master.script["copy_final"].append(copy)
    harness.submit(one, [job()])
    await copy.reached.wait()
    harness.master.script["hold"].append(hold)
    entry = Entry(new_id(), 2, "note", b"{}", harness.clock.wall_us() + 60_000_000)
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, two.fence.bucket_id, 1)
    harness.store.buckets[two.fence.bucket_id].assigned.append((entry.due_us, entry))
    ids = [one.fence.bucket_id, two.fence.bucket_id]
    async with asyncio.timeout(PATIENCE_SECONDS):
        left = await harness.bucket_worker.complete(ids, 0.02, "on request of the test")
    assert hold.reached.is_set()
    assert left == ids
    assert harness.lists(one)
    assert harness.store.buckets[two.fence.bucket_id].assigned
    copy.opened.set()
    await turns()


async def test_a_fenced_start_that_waits_for_the_master_is_given_up(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    write = Gate()
    harness.master.script["persist"].append(write)
    entry = job("fenced")
    harness.submit(bucket, [entry])
    await write.reached.wait()
    leaving = leave(harness, bucket)
    await turns()
    harness.clock.now += 101.0
    await until(lambda: harness.bucket_worker.executor.running == 0)
    write.opened.set()
    assert await leaving == []
    assert harness.master.rows[entry.id].state == "HELD"
    assert not ran


async def test_a_lost_answer_to_a_move_is_no_reason_to_leave_the_bucket(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.master.script["move_bucket"] += [LOST, None, LOST]
    assert await leave(harness, bucket) == []
    assert is_retired(harness, bucket)


async def test_news_that_goes_out_after_the_bucket_was_closed_is_no_sign_of_a_loss(
    harness: WorkerHarness,
) -> None:
    """Between the closing in the store and the one in the master, the store answers CLOSED to its owner, too."""
    bucket = harness.bucket()
    retiring = Gate()
    harness.master.script["move_bucket"] += [None, retiring]
    leaving = leave(harness, bucket)
    await retiring.reached.wait()
    late = new_id()
    harness.bucket_worker.outcome_writer.acknowledger.publish(bucket, [late])
    await until(lambda: late in harness.store.news)
    await turns()
    assert not bucket.lost
    retiring.opened.set()
    assert await leaving == []
    assert is_retired(harness, bucket)


async def test_nor_is_news_that_goes_out_while_the_other_buckets_are_still_completing(
    harness: WorkerHarness,
) -> None:
    one, two = harness.bucket(), harness.bucket()
    harness.submit(two, [job("wait")])
    await until(lambda: ran)
    ids = [one.fence.bucket_id, two.fence.bucket_id]
    leaving = asyncio.ensure_future(harness.bucket_worker.complete(ids, 100.0, "on request of the test"))
    await until(lambda: one.state is BucketState.READY_TO_DELETE)
    late = new_id()
    harness.bucket_worker.outcome_writer.acknowledger.publish(one, [late])
    await until(lambda: late in harness.store.news)
    await turns()
    assert not one.lost
    go.set()
    assert await leaving == []


async def test_a_retired_bucket_leaves_memory_at_once_while_another_still_works(harness: WorkerHarness) -> None:
    """The master does not count it any more: an agent that still did would ask, hear that it is not among its buckets, and
    have it rescued."""
    one, two = harness.bucket(), harness.bucket()
    harness.submit(two, [job("wait")])
    await until(lambda: ran)
    ids = [one.fence.bucket_id, two.fence.bucket_id]
    leaving = asyncio.ensure_future(harness.bucket_worker.complete(ids, 100.0, "on request of the test"))
    await until(lambda: one.state is BucketState.READY_TO_DELETE)
    await turns()
    assert list(harness.ownership.buckets) == [two.fence.bucket_id]
    assert not one.lost
    go.set()
    assert await leaving == []
    assert list(harness.ownership.buckets) == []


async def test_a_bucket_with_another_owner_is_left_alone(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    await until(lambda: harness.store.of("claim"))
    harness.rescue(bucket)
    assert await leave(harness, bucket) == [bucket.fence.bucket_id]
    assert not harness.store.of("close_intake")


async def test_a_second_copy_promoted_at_the_end_is_given_back(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    entry = job("wait")
    harness.submit(one, [entry])
    await until(lambda: ran)
    harness.submit(two, [entry])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    leaving = leave(harness, two, grace_seconds=50.0)
    await turns()
    assert not leaving.done(), "its list may go only after the kept copy has settled"
    go.set()
    assert await leaving == []
    assert len(ran) == 1


async def test_an_exit_during_the_completion_of_a_bucket_waits_for_its_end(harness: WorkerHarness) -> None:
    """The configuration has fewer buckets, or help is not needed any more, and at that moment the agent leaves."""
    bucket = harness.bucket()
    retiring = Gate()
    harness.master.script["move_bucket"] += [None, retiring]
    first = leave(harness, bucket)
    await retiring.reached.wait()
    assert harness.store.buckets[bucket.fence.bucket_id].state is BucketState.READY_TO_DELETE
    second = leave(harness, bucket)
    await turns()
    retiring.opened.set()
    assert await first == []
    assert await second == []
    assert is_retired(harness, bucket)
