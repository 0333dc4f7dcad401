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
from jobmaster_agents import until_answered
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import LOST, Gate, Kit, Row, turns
from tests.support.fake_store import REQUESTS_MAX
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
    raise ValueError("as it was told")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_answered, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    go.clear()


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with Kit(handlers, AgentSettings(slots=1, bucket_buffer=0)) as made:
        yield made


MINUTE_US = 60_000_000


def claims(kit: Kit) -> int:
    return len(kit.store.of("claim"))


async def later(kit: Kit, bucket: OwnedBucket, token: int = 2) -> Entry:
    """A job that was onboarded ahead of its time."""
    due_us = kit.clock.wall_us() + MINUTE_US
    entry = Entry(new_id(), token, "note", b"{}", due_us)
    kit.master.rows[entry.id] = Row("ASSIGNED", token, *bucket.fence[:2], due_us=due_us)
    await kit.store.assign(bucket.fence, [(due_us, encode_entry(entry))])
    return entry


def hint(kit: Kit, bucket: OwnedBucket, *job_ids: bytes) -> None:
    """What a producer leaves in the bucket. (A bucket without room is looked at now and then.)"""
    kit.clock.now += 1.0
    kit.trust()
    kit.store.buckets[bucket.fence.bucket_id].cancelled.update(job_ids)
    kit.store.tokens.put_nowait(bucket.fence.bucket_id)


async def time_passes(kit: Kit, bucket: OwnedBucket) -> None:
    """Everything that waits for its time has it."""
    kit.clock.now += 120.0
    kit.trust()
    before = claims(kit)
    kit.bucket_worker.claimers[bucket.fence.bucket_id].wake()
    await until(lambda: claims(kit) > before)
    await kit.settled()


# ---------------------------------------------------------------- waiting for its time


@pytest.mark.parametrize("token", [2, 3], ids=["onboarded", "waiting for its retry"])
@pytest.mark.parametrize("how", ["hint", "renewal"])
async def test_a_job_that_waits_for_its_time_ends_at_once_and_its_copy_is_taken_out(
    kit: Kit, token: int, how: str
) -> None:
    bucket = kit.bucket()
    victim, neighbour = await later(kit, bucket, token), await later(kit, bucket)
    kit.master.rows[victim.id].cancel = True
    if how == "hint":
        hint(kit, bucket, victim.id)
    else:
        kit.bucket_worker.cancel([victim.id])
    there = kit.store.buckets[bucket.fence.bucket_id]
    await until(lambda: kit.master.rows[victim.id].state == "CANCELLED", "the end of a job that was not due")
    await until(lambda: [entry.id for _, entry in there.assigned] == [neighbour.id], "its copy to be taken out")
    await until(lambda: not there.cancelled and not len(kit.bucket_worker.cancellation), "the request to be over")
    await until(lambda: victim.id in kit.store.news, "those who wait for the job to be told")
    await time_passes(kit, bucket)
    assert ran == ["note"], "the neighbour alone"


async def test_a_copy_that_is_claimed_while_the_row_is_asked_about_is_not_started(kit: Kit) -> None:
    bucket = kit.bucket()
    victim = await later(kit, bucket)
    kit.master.rows[victim.id].cancel = True
    gate = Gate()
    kit.master.script["cancel_waiting"].append(gate)
    hint(kit, bucket, victim.id)
    await gate.reached.wait()
    await time_passes(kit, bucket)
    assert not ran
    gate.opened.set()
    await until(lambda: not len(kit.bucket_worker.cancellation))
    assert kit.master.rows[victim.id].state == "CANCELLED"


async def test_a_copy_that_is_still_on_its_way_into_the_bucket_is_not_started(kit: Kit) -> None:
    """Marked first, put second: the request comes in between."""
    bucket = kit.bucket()
    victim = await later(kit, bucket)
    there = kit.store.buckets[bucket.fence.bucket_id]
    on_its_way, there.assigned = there.assigned, []
    kit.master.rows[victim.id].cancel = True
    kit.bucket_worker.cancel([victim.id])
    await until(lambda: kit.store.of("withdraw"))
    there.assigned += on_its_way
    await time_passes(kit, bucket)
    assert not ran
    await until(lambda: not len(kit.bucket_worker.cancellation))


async def test_a_retry_that_is_on_its_way_back_into_the_bucket_is_not_started(kit: Kit) -> None:
    """The row waits here for its retry already, the answer is not there yet, the copy is not put."""
    bucket = kit.bucket()
    victim = Entry(new_id(), 1, "fails", b"{}")
    written = Gate(late=True)
    kit.master.script["retry_here"].append(written)
    kit.submit(bucket, [victim])
    await written.reached.wait()
    kit.master.rows[victim.id].cancel = True
    hint(kit, bucket, victim.id)
    await until(lambda: kit.store.of("withdraw"))
    written.opened.set()
    await kit.settled()
    await time_passes(kit, bucket)
    assert ran == ["fails"]
    assert kit.master.rows[victim.id].state == "CANCELLED"


async def test_an_outcome_that_happened_stays_the_outcome(kit: Kit) -> None:
    bucket = kit.bucket()
    job = Entry(new_id(), 2, "note", b"{}")
    kit.master.rows[job.id] = Row("ASSIGNED", 2, *bucket.fence[:2])
    gate = Gate()
    kit.master.script["record_final"].append(gate)
    await kit.store.assign(bucket.fence, [(0, encode_entry(job))])
    await gate.reached.wait()
    kit.master.rows[job.id].cancel = True
    kit.bucket_worker.cancel([job.id])
    await turns()
    gate.opened.set()
    await kit.settled()
    assert kit.master.rows[job.id].state == JobState.SUCCEEDED


async def test_a_request_whose_answer_is_lost_is_made_again(kit: Kit) -> None:
    bucket = kit.bucket()
    victim = await later(kit, bucket)
    kit.master.rows[victim.id].cancel = True
    kit.master.script["cancel_waiting"] += [LOST]
    kit.store.script["withdraw"] += [LOST, LOST]
    hint(kit, bucket, victim.id)
    await until(lambda: not kit.store.script["withdraw"])
    await time_passes(kit, bucket)
    assert not ran
    assert kit.master.rows[victim.id].state == "CANCELLED"


async def test_a_put_that_is_repeated_does_not_bring_back_what_was_taken_out(kit: Kit) -> None:
    """The first put was done and its answer lost; the copy is taken out, then the put is repeated."""
    bucket = kit.bucket()
    await until(lambda: kit.master.of("onboard"))
    first, second = Gate(LOST, late=True), Gate()
    kit.store.script["assign"] += [first, second]
    victim, neighbour = (Entry(new_id(), 1, "note", b"{}") for _ in range(2))
    for entry in (victim, neighbour):
        kit.master.rows[entry.id] = Row("HELD", 1, due_us=kit.clock.wall_us() + MINUTE_US)
        kit.master.entries[entry.id] = entry
    kit.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await first.reached.wait()
    kit.master.rows[victim.id].cancel = True
    hint(kit, bucket, victim.id)
    await until(lambda: kit.store.of("withdraw"))
    first.opened.set()
    second.opened.set()
    await until(lambda: kit.bucket_worker.due_fetcher.onboarded == 2)
    await time_passes(kit, bucket)
    assert ran == ["note"]
    assert [kit.master.rows[entry.id].state for entry in (victim, neighbour)] == ["CANCELLED", "SUCCEEDED"]


# ---------------------------------------------------------------- waiting in line, with a row that refuses it


async def test_no_request_is_forgotten_however_many_there_are(kit: Kit) -> None:
    """In a bucket that is never empty requests for jobs that are long over must not push out the others."""
    bucket = kit.bucket()
    victim = Entry(new_id(), 1, "note", b"{}")
    kit.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
    await until(lambda: ran == ["wait"])
    kit.submit(bucket, [Entry(new_id(), 1, "note", b"{}"), victim])
    kit.master.rows[victim.id] = Row("CANCELLED", 1)
    there = kit.store.buckets[bucket.fence.bucket_id]
    hint(kit, bucket, victim.id, *(new_id() for _ in range(12_000)))
    while there.cancelled:
        kit.clock.now += 1.0  # a bucket without room is looked at now and then
        kit.trust()
        kit.store.tokens.put_nowait(bucket.fence.bucket_id)
        await turns(20)
    assert claims(kit) >= 12_000 // REQUESTS_MAX
    go.set()
    await kit.settled()
    assert ran == ["wait", "note"]
    kit.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
    await kit.settled()
    await until(lambda: not len(kit.bucket_worker.cancellation), "nothing to be kept of requests whose jobs are over")


async def test_requests_in_a_reply_that_was_lost_come_again(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
    await until(lambda: ran == ["wait"])
    victim = Entry(new_id(), 1, "note", b"{}")
    kit.submit(bucket, [victim])
    kit.master.rows[victim.id] = Row("CANCELLED", 1)
    await turns()
    kit.store.script["claim"] += [LOST]
    hint(kit, bucket, victim.id)
    await until(lambda: not kit.store.buckets[bucket.fence.bucket_id].cancelled)
    go.set()
    await kit.settled()
    assert ran == ["wait"]


async def test_a_second_copy_of_a_cancelled_job_does_not_take_over(kit: Kit) -> None:
    one, two = kit.bucket(), kit.bucket()
    entry = Entry(new_id(), 1, "wait", b"{}")
    kit.submit(one, [entry])
    await until(lambda: ran)
    kit.submit(two, [entry])
    await until(lambda: kit.bucket_worker.job_table.duplicates)
    kit.master.rows[entry.id] = Row("CANCELLED", 1)
    hint(kit, one, entry.id)
    await kit.settled()
    assert ran == ["wait"]


async def test_a_list_of_an_abandoned_claim_is_read_before_anything_is_claimed_past_it() -> None:
    """Its jobs come before those that wait, so a request that came with a later claim may be about one of them."""
    async with Kit(handlers, AgentSettings(slots=1, bucket_buffer=5)) as kit:
        bucket = kit.bucket()
        kit.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
        await until(lambda: ran == ["wait"])
        await turns()
        victim = Entry(new_id(), 1, "note", b"{}")
        kit.master.rows[victim.id] = Row("CANCELLED", 1)
        kit.store.script["claim"] += [LOST, Claimed(ReplyStatus.CLOSED, [], [], 0, 0, False, 0)]
        kit.submit(bucket, [victim])
        await until(lambda: not kit.store.script["claim"])
        hint(kit, bucket, victim.id)
        await until(lambda: not kit.store.buckets[bucket.fence.bucket_id].cancelled)
        await kit.bucket_worker.claimers[bucket.fence.bucket_id].adopt_unknown_lists()
        go.set()
        await kit.settled()
        assert ran == ["wait"]


async def test_nothing_is_kept_of_a_bucket_that_is_gone(kit: Kit) -> None:
    bucket = kit.bucket()
    kit.submit(bucket, [Entry(new_id(), 1, "wait", b"{}")])
    await until(lambda: ran == ["wait"])
    kit.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
    hint(kit, bucket, new_id(), new_id())
    await until(lambda: kit.store.of("withdraw"))
    await until(lambda: len(kit.bucket_worker.cancellation) == 2)
    kit.bucket_worker.forget(bucket.fence.bucket_id, "the test says so")
    assert not len(kit.bucket_worker.cancellation)
