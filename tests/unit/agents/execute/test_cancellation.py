"""Cancel requests for jobs that are not in memory: their rows end at once, and no copy of them is ever started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.handlers import Handlers
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import Claimed, ReplyStatus
from jobmaster.settings.model import AgentSettings
from jobmaster_agents import call_retry
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import LOST, Gate, Row, WorkerHarness, turns
from tests.support.fakes.fake_store import REQUESTS_MAX
from tests.support.waiting import until

handlers = Handlers()
ran: list[str] = []
go = asyncio.Event()


@handlers.job(name="note")
async def note() -> None:
    ran.append("note")


@handlers.job(name="wait", timeout=1e6)
async def wait() -> None:
    ran.append("wait")
    await go.wait()


@handlers.job(name="fails", timeout=1e6, backoff=60.0, max_attempts=5)
async def fails() -> None:
    ran.append("fails")
    raise ValueError("on purpose")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    go.clear()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers, AgentSettings(slots=1, bucket_buffer=0)) as made:
        yield made


MINUTE_US = 60_000_000


def claims(harness: WorkerHarness) -> int:
    return len(harness.store.of("claim"))


async def later(harness: WorkerHarness, bucket: OwnedBucket, token: int = 2) -> Entry:
    """A job that was onboarded ahead of its time."""
    due_us = harness.clock.wall_us() + MINUTE_US
    entry = Entry(new_id(), token, "note", b"{}", due_us)
    harness.master.rows[entry.id] = Row("ASSIGNED", token, *bucket.fence[:2], due_us=due_us)
    await harness.store.assign(bucket.fence, [(due_us, encode_entry(entry))])
    return entry


def hint(harness: WorkerHarness, bucket: OwnedBucket, *job_ids: bytes) -> None:
    """What a producer leaves in the bucket. (A bucket without room is looked at now and then.)"""
    harness.clock.now += 1.0
    harness.trust()
    harness.store.buckets[bucket.fence.bucket_id].cancelled.update(job_ids)
    harness.store.tokens.put_nowait(bucket.fence.bucket_id)


async def time_passes(harness: WorkerHarness, bucket: OwnedBucket) -> None:
    """Everything that waits for its time has it."""
    harness.clock.now += 120.0
    harness.trust()
    before = claims(harness)
    harness.bucket_worker.claimers[bucket.fence.bucket_id].wake()
    await until(lambda: claims(harness) > before)
    await harness.settled()


# ---------------------------------------------------------------- waiting for its time


@pytest.mark.parametrize("token", [2, 3], ids=["onboarded", "waiting for its retry"])
@pytest.mark.parametrize("how", ["hint", "renewal"])
async def test_a_job_that_waits_for_its_time_ends_at_once_and_its_copy_is_taken_out(
    harness: WorkerHarness, token: int, how: str
) -> None:
    bucket = harness.bucket()
    victim, neighbour = await later(harness, bucket, token), await later(harness, bucket)
    harness.master.rows[victim.id].cancel = True
    if how == "hint":
        hint(harness, bucket, victim.id)
    else:
        harness.bucket_worker.cancel([victim.id])
    there = harness.store.buckets[bucket.fence.bucket_id]
    await until(lambda: harness.master.rows[victim.id].state == "CANCELLED", "the end of a job that was not due")
    await until(lambda: [entry.id for _, entry in there.assigned] == [neighbour.id], "its copy to be taken out")
    await until(lambda: not there.cancelled and not len(harness.bucket_worker.cancellation), "the request to be over")
    await until(lambda: victim.id in harness.store.news, "the end of the job to be published")
    await time_passes(harness, bucket)
    assert ran == ["note"], "the neighbour alone"


async def test_a_copy_that_is_claimed_while_the_row_is_asked_about_is_not_started(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    victim = await later(harness, bucket)
    harness.master.rows[victim.id].cancel = True
    gate = Gate()
    harness.master.script["cancel_waiting"].append(gate)
    hint(harness, bucket, victim.id)
    await gate.reached.wait()
    await time_passes(harness, bucket)
    assert not ran
    gate.opened.set()
    await until(lambda: not len(harness.bucket_worker.cancellation))
    assert harness.master.rows[victim.id].state == "CANCELLED"


async def test_a_copy_that_is_still_on_its_way_into_the_bucket_is_not_started(harness: WorkerHarness) -> None:
    """Marked first, put second: the request comes in between."""
    bucket = harness.bucket()
    victim = await later(harness, bucket)
    there = harness.store.buckets[bucket.fence.bucket_id]
    on_its_way, there.assigned = there.assigned, []
    harness.master.rows[victim.id].cancel = True
    harness.bucket_worker.cancel([victim.id])
    await until(lambda: harness.store.of("withdraw"))
    there.assigned += on_its_way
    await time_passes(harness, bucket)
    assert not ran
    await until(lambda: not len(harness.bucket_worker.cancellation))


async def test_a_retry_that_is_on_its_way_back_into_the_bucket_is_not_started(harness: WorkerHarness) -> None:
    """The row waits here for its retry already, the answer is not there yet, the copy is not put."""
    bucket = harness.bucket()
    victim = Entry(new_id(), 1, "fails", b"{}")
    written = Gate(late=True)
    harness.master.script["retry_here"].append(written)
    harness.submit(bucket, [victim])
    await written.reached.wait()
    harness.master.rows[victim.id].cancel = True
    hint(harness, bucket, victim.id)
    await until(lambda: harness.store.of("withdraw"))
    written.opened.set()
    await harness.settled()
    await time_passes(harness, bucket)
    assert ran == ["fails"]
    assert harness.master.rows[victim.id].state == "CANCELLED"


async def test_an_outcome_that_happened_stays_the_outcome(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    job = Entry(new_id(), 2, "note", b"{}")
    harness.master.rows[job.id] = Row("ASSIGNED", 2, *bucket.fence[:2])
    gate = Gate()
    harness.master.script["record_final"].append(gate)
    await harness.store.assign(bucket.fence, [(0, encode_entry(job))])
    await gate.reached.wait()
    harness.master.rows[job.id].cancel = True
    harness.bucket_worker.cancel([job.id])
    await turns()
    gate.opened.set()
    await harness.settled()
    assert harness.master.rows[job.id].state == JobState.SUCCEEDED


async def test_a_request_whose_answer_is_lost_is_made_again(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    victim = await later(harness, bucket)
    harness.master.rows[victim.id].cancel = True
    harness.master.script["cancel_waiting"] += [LOST]
    harness.store.script["withdraw"] += [LOST, LOST]
    hint(harness, bucket, victim.id)
    await until(lambda: not harness.store.script["withdraw"])
    await time_passes(harness, bucket)
    assert not ran
    assert harness.master.rows[victim.id].state == "CANCELLED"


async def test_a_put_that_is_repeated_does_not_bring_back_what_was_taken_out(harness: WorkerHarness) -> None:
    """The first put was done and its answer lost; the copy is taken out, then the put is repeated."""
    bucket = harness.bucket()
    await until(lambda: harness.master.of("onboard"))
    first, second = Gate(LOST, late=True), Gate()
    harness.store.script["assign"] += [first, second]
    victim, neighbour = (Entry(new_id(), 1, "note", b"{}") for _ in range(2))
    for entry in (victim, neighbour):
        harness.master.rows[entry.id] = Row("HELD", 1, due_us=harness.clock.wall_us() + MINUTE_US)
        harness.master.entries[entry.id] = entry
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await first.reached.wait()
    harness.master.rows[victim.id].cancel = True
    hint(harness, bucket, victim.id)
    await until(lambda: harness.store.of("withdraw"))
    first.opened.set()
    second.opened.set()
    await until(lambda: harness.bucket_worker.due_fetcher.onboarded == 2)
    await time_passes(harness, bucket)
    assert ran == ["note"]
    assert [harness.master.rows[entry.id].state for entry in (victim, neighbour)] == ["CANCELLED", "SUCCEEDED"]


# ---------------------------------------------------------------- waiting in line, with a row that refuses it


async def test_no_request_is_forgotten_however_many_there_are(harness: WorkerHarness) -> None:
    """In a bucket that is never empty requests for jobs that are long over must not push out the others."""
    bucket = harness.bucket()
    victim = Entry(new_id(), 1, "note", b"{}")
    harness.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
    await until(lambda: ran == ["wait"])
    harness.submit(bucket, [Entry(new_id(), 1, "note", b"{}"), victim])
    harness.master.rows[victim.id] = Row("CANCELLED", 1)
    there = harness.store.buckets[bucket.fence.bucket_id]
    hint(harness, bucket, victim.id, *(new_id() for _ in range(12_000)))
    while there.cancelled:
        harness.clock.now += 1.0  # a bucket without room is looked at now and then
        harness.trust()
        harness.store.tokens.put_nowait(bucket.fence.bucket_id)
        await turns(20)
    assert claims(harness) >= 12_000 // REQUESTS_MAX
    go.set()
    await harness.settled()
    assert ran == ["wait", "note"]
    harness.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
    await harness.settled()
    await until(
        lambda: not len(harness.bucket_worker.cancellation), "nothing to be kept of requests whose jobs are over"
    )


async def test_requests_in_a_reply_that_was_lost_come_again(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
    await until(lambda: ran == ["wait"])
    victim = Entry(new_id(), 1, "note", b"{}")
    harness.submit(bucket, [victim])
    harness.master.rows[victim.id] = Row("CANCELLED", 1)
    await turns()
    harness.store.script["claim"] += [LOST]
    hint(harness, bucket, victim.id)
    await until(lambda: not harness.store.buckets[bucket.fence.bucket_id].cancelled)
    go.set()
    await harness.settled()
    assert ran == ["wait"]


async def test_a_second_copy_of_a_cancelled_job_does_not_take_over(harness: WorkerHarness) -> None:
    one, two = harness.bucket(), harness.bucket()
    entry = Entry(new_id(), 1, "wait", b"{}")
    harness.submit(one, [entry])
    await until(lambda: ran)
    harness.submit(two, [entry])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    harness.master.rows[entry.id] = Row("CANCELLED", 1)
    hint(harness, one, entry.id)
    await harness.settled()
    assert ran == ["wait"]


async def test_a_list_of_an_abandoned_claim_is_read_before_anything_is_claimed_past_it() -> None:
    """Its jobs come before those that wait, so a request that came with a later claim may be about one of them."""
    async with WorkerHarness(handlers, AgentSettings(slots=1, bucket_buffer=5)) as harness:
        bucket = harness.bucket()
        harness.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
        await until(lambda: ran == ["wait"])
        await turns()
        victim = Entry(new_id(), 1, "note", b"{}")
        harness.master.rows[victim.id] = Row("CANCELLED", 1)
        harness.store.script["claim"] += [LOST, Claimed(ReplyStatus.CLOSED, [], [], 0, 0, False, 0)]
        harness.submit(bucket, [victim])
        await until(lambda: not harness.store.script["claim"])
        hint(harness, bucket, victim.id)
        await until(lambda: not harness.store.buckets[bucket.fence.bucket_id].cancelled)
        await harness.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
        go.set()
        await harness.settled()
        assert ran == ["wait"]


async def test_nothing_is_kept_of_a_bucket_that_is_gone(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
    await until(lambda: ran == ["wait"])
    harness.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
    hint(harness, bucket, new_id(), new_id())
    await until(lambda: harness.store.of("withdraw"))
    await until(lambda: len(harness.bucket_worker.cancellation) == 2)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    assert not len(harness.bucket_worker.cancellation)
