"""From HELD into a bucket: mark first, put second, what cannot be put goes back, nothing stalls and nothing is flooded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import Refused
from jobmaster.model.job import Entry, JobState
from jobmaster.ports import ReplyStatus
from jobmaster.settings.model import AgentSettings, Thresholds
from jobmaster_agents import until_answered
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Kit, Row, turns
from tests.support.waiting import until

handlers = Handlers()
ran: list[int] = []


@handlers.job(name="note")
async def note() -> None:
    ran.append(0)


finish = asyncio.Semaphore(0)


@handlers.job(name="wait", timeout=1e6)
async def wait() -> None:
    await finish.acquire()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_answered, "BACKOFF_SECONDS", 0.0)
    ran.clear()


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with Kit(handlers) as made:
        made.bucket_worker.due_fetcher.alone = True
        yield made


def held(kit: Kit, count: int, due_seconds: float = 0.0) -> list[bytes]:
    ids = []
    for _ in range(count):
        entry = Entry(new_id(), 1, "note", b"{}")
        kit.master.rows[entry.id] = Row("HELD", 1, due_us=kit.clock.wall_us() + int(due_seconds * 1e6))
        kit.master.entries[entry.id] = entry
        ids.append(entry.id)
    return ids


async def opened(kit: Kit) -> OwnedBucket:
    bucket = kit.bucket()
    await until(lambda: kit.master.of("onboard"))
    await turns()
    return bucket


def states(kit: Kit, ids: list[bytes]) -> set[str]:
    return {kit.master.rows[job_id].state for job_id in ids}


def hint(kit: Kit, bucket: OwnedBucket) -> None:
    kit.store.buckets[bucket.fence.bucket_id].hint = True
    kit.store.tokens.put_nowait(bucket.fence.bucket_id)


async def test_a_hint_fetches_all_due_jobs_batch_by_batch(kit: Kit) -> None:
    bucket = await opened(kit)
    ids = held(kit, 7500)
    hint(kit, bucket)
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED}, "all of them to run from one hint")
    assert len(ran) == 7500
    asked = len(kit.master.of("onboard"))
    await turns()
    assert len(kit.master.of("onboard")) == asked, "with nothing left the master is left alone"


async def test_a_batch_is_no_larger_than_the_configured_one(kit: Kit) -> None:
    bucket = await opened(kit)
    kit.bucket_worker.due_fetcher._thresholds = Thresholds(transfer_batch=7)
    before, ids = len(kit.master.of("onboard")), held(kit, 30)
    hint(kit, bucket)
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})
    assert {limit for _, _, limit in kit.master.of("onboard")[before:]} == {7}
    assert max(len(items) for _, items in kit.store.of("assign")) == 7


async def test_a_new_bucket_looks_once_by_itself(kit: Kit) -> None:
    ids = held(kit, 3)
    kit.bucket()
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})


async def test_marked_first_and_put_second(kit: Kit) -> None:
    bucket = await opened(kit)
    put = Gate()
    kit.store.script["assign"].append(put)
    ids = held(kit, 2)
    hint(kit, bucket)
    await put.reached.wait()
    assert states(kit, ids) == {"ASSIGNED"}
    assert not kit.store.buckets[bucket.fence.bucket_id].assigned
    put.opened.set()
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})


async def test_the_next_batch_is_queried_while_one_is_put_but_not_above_the_low_water_mark(kit: Kit) -> None:
    bucket = await opened(kit)
    puts = [Gate(), Gate()]
    kit.store.script["assign"] += puts
    ids = held(kit, 5000)
    before = len(kit.master.of("onboard"))
    hint(kit, bucket)
    await until(lambda: all(put.reached.is_set() for put in puts))
    await turns()
    assert len(kit.master.of("onboard")) == before + 2
    puts[1].opened.set()  # in whichever order they arrive
    await turns()
    assert len(kit.store.buckets[bucket.fence.bucket_id].assigned) or ran
    puts[0].opened.set()
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})
    assert len(ran) == 5000


async def test_another_bucket_is_queried_while_two_batches_are_put(kit: Kit) -> None:
    buckets = [await opened(kit) for _ in range(3)]
    puts = [Gate(), Gate()]
    kit.store.script["assign"] += puts
    for bucket, put in zip(buckets, puts, strict=False):
        held(kit, 1)
        hint(kit, bucket)
        await put.reached.wait()
    [third] = held(kit, 1)
    hint(kit, buckets[2])
    await until(lambda: states(kit, [third]) == {JobState.SUCCEEDED}, "the third not to wait for the store")
    for put in puts:
        put.opened.set()


async def test_no_more_than_two_claims_at_once_in_the_master(kit: Kit) -> None:
    buckets = [await opened(kit) for _ in range(3)]
    claims, put = [Gate(), Gate()], Gate()
    kit.master.script["onboard"] += claims
    kit.store.script["assign"].append(put)
    ids, before = held(kit, 3), len(kit.master.of("onboard"))
    for bucket in buckets:
        hint(kit, bucket)
    await until(lambda: all(claim.reached.is_set() for claim in claims))
    await turns()
    assert len(kit.master.of("onboard")) == before + 2
    claims[0].opened.set()
    await until(lambda: len(kit.master.of("onboard")) > before + 2, "the next to be sent as soon as one is answered")
    assert put.reached.is_set()
    claims[1].opened.set()
    put.opened.set()
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})


async def test_copies_whose_put_got_no_answer_are_put_again(kit: Kit) -> None:
    bucket = await opened(kit)
    kit.store.script["assign"] += [DOWN, Refused("NOPERM")]
    ids = held(kit, 2)
    hint(kit, bucket)
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})
    assert not kit.master.of("release")


async def test_rows_whose_copies_cannot_be_put_go_back_and_come_again(kit: Kit) -> None:
    bucket = await opened(kit)
    kit.store.script["assign"] += [DOWN, DOWN, DOWN]
    ids = held(kit, 2)
    hint(kit, bucket)
    await until(lambda: kit.master.of("release"))
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})
    assert {kit.master.rows[job_id].token for job_id in ids} == {3}


async def test_a_copy_that_was_put_after_all_is_refused_by_its_row(kit: Kit) -> None:
    bucket = await opened(kit)
    kit.store.script["assign"] += [LOST, DOWN, DOWN]
    [job_id] = held(kit, 1)
    hint(kit, bucket)
    await until(lambda: states(kit, [job_id]) == {JobState.SUCCEEDED})
    await kit.settled()
    assert len(kit.master.finals) == 1


async def test_the_store_closed_meanwhile_gives_the_rows_back_and_keeps_the_bucket(kit: Kit) -> None:
    bucket = await opened(kit)
    kit.store.script["assign"].append(ReplyStatus.CLOSED)
    ids = held(kit, 2)
    bucket_ok = bucket.fence.bucket_id
    hint(kit, bucket)
    await until(lambda: kit.master.of("release"))
    assert states(kit, ids) <= {"HELD", "ASSIGNED", JobState.SUCCEEDED}
    assert bucket_ok in kit.ownership.buckets


async def test_refused_by_the_bucket_lock_the_bucket_is_forgotten(kit: Kit) -> None:
    bucket = await opened(kit)
    ids = held(kit, 2)
    kit.rescue(bucket)
    kit.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await until(lambda: bucket.lost)
    assert states(kit, ids) == {"HELD"}


async def test_an_outage_of_the_master_is_waited_out(kit: Kit) -> None:
    bucket = await opened(kit)
    kit.master.script["onboard"] += [DOWN, Refused("permission denied"), LOST, DOWN]
    ids = held(kit, 2)
    hint(kit, bucket)
    await until(lambda: len(kit.master.of("onboard")) >= 6)
    # What the lost answer had marked is left to anti-entropy, which finds no copy.
    assert states(kit, ids) == {"ASSIGNED"}
    more = held(kit, 2)
    hint(kit, bucket)
    await until(lambda: states(kit, more) == {JobState.SUCCEEDED})


async def test_a_bucket_full_of_later_jobs_still_takes_what_is_due_now(kit: Kit) -> None:
    bucket = await opened(kit)
    later = held(kit, 6000, due_seconds=200.0)
    hint(kit, bucket)
    await until(lambda: len(kit.store.buckets[bucket.fence.bucket_id].assigned) >= 2000)
    await turns()
    waiting = len(kit.store.buckets[bucket.fence.bucket_id].assigned)
    assert waiting <= 4000, "a bucket is not flooded with what is due in minutes"
    [now] = held(kit, 1)
    hint(kit, bucket)
    await until(lambda: states(kit, [now]) == {JobState.SUCCEEDED})
    assert len(kit.store.buckets[bucket.fence.bucket_id].assigned) == waiting
    assert states(kit, later) == {"ASSIGNED", "HELD"}


async def test_a_steady_stream_of_later_jobs_does_not_hold_up_what_is_due_now(kit: Kit) -> None:
    """Twenty fall due every second, so the next one is never far off; a rescued job is due at once all the same."""
    bucket = await opened(kit)
    for number in range(6000):
        held(kit, 1, due_seconds=0.05 * (number + 1))
    hint(kit, bucket)
    await until(lambda: len(kit.store.buckets[bucket.fence.bucket_id].assigned) >= 2000)
    await turns()
    [now] = held(kit, 1)
    hint(kit, bucket)
    await until(lambda: states(kit, [now]) == {JobState.SUCCEEDED})


async def test_claims_of_producers_jobs_cause_no_query(kit: Kit) -> None:
    bucket = await opened(kit)
    held(kit, 6000, due_seconds=200.0)
    hint(kit, bucket)
    await until(lambda: len(kit.store.buckets[bucket.fence.bucket_id].assigned) >= 2000)
    await turns()
    asked = len(kit.master.of("onboard"))
    for _ in range(50):
        kit.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
        await kit.settled()
    assert len(kit.master.of("onboard")) == asked


async def test_jobs_that_came_another_way_do_not_stall_the_count(kit: Kit) -> None:
    """Retries here, and jobs a producer put: claimed with a token above 1 and never fetched by us. And the reverse: fetched
    by us and spilled unrun."""
    bucket = await opened(kit)
    due = kit.bucket_worker.due_fetcher._due[bucket.fence.bucket_id]
    kit.store.buckets[bucket.fence.bucket_id].assigned += [(0, Entry(new_id(), 2, "note", b"{}")) for _ in range(10)]
    kit.bucket_worker.claimers[bucket.fence.bucket_id].wake()
    await kit.settled()
    assert due.ahead == 0
    due.ahead = 5000  # whatever made it drift
    kit.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
    await kit.settled()
    assert due.ahead == 0, "a claim after which nothing waits sets it right"


async def test_nothing_is_marked_past_half_the_lease(kit: Kit) -> None:
    bucket = await opened(kit)
    ids = held(kit, 2)
    kit.clock.now = kit.ownership.soft_until + 1.0
    kit.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert states(kit, ids) == {"HELD"}
    kit.trust()
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})


async def test_a_bucket_over_its_high_water_mark_takes_no_more(kit: Kit) -> None:
    bucket = await opened(kit)
    held(kit, 3)
    kit.bucket_worker.due_fetcher.claimed(bucket.fence.bucket_id, 0, 0, None, crowded=True)
    asked = len(kit.master.of("onboard"))
    kit.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert len(kit.master.of("onboard")) == asked
    kit.bucket_worker.due_fetcher.claimed(bucket.fence.bucket_id, 0, 0, None, crowded=False)
    await until(lambda: len(ran) == 3)


async def test_a_frozen_bucket_with_a_hint_is_left_alone_until_it_is_resumed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: the hint was kept, so the fetcher took the bucket again and again without a pause."""
    bucket = await opened(kit)
    asked = len(kit.master.of("onboard"))
    looks = 0

    def may_start(now: float, really: Callable[[float], bool] = kit.ownership.may_start) -> bool:
        nonlocal looks
        looks += 1
        assert looks < 1000, "the fetcher spins"
        return really(now)

    monkeypatch.setattr(kit.ownership, "may_start", may_start)
    kit.bucket_worker.freeze(bucket)
    kit.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert len(kit.master.of("onboard")) == asked
    ids = held(kit, 3)
    bucket.advance_epoch(bucket.fence.epoch)
    kit.bucket_worker.resume(bucket)
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})


async def test_a_put_that_is_repeated_starts_no_finished_job_again(kit: Kit) -> None:
    """The first put was done and its answer lost; the job was claimed, run and settled before the second one."""
    bucket = await opened(kit)
    put = Gate(LOST, late=True)
    kit.store.script["assign"].append(put)
    ids = held(kit, 2)
    hint(kit, bucket)
    await put.reached.wait()
    await until(lambda: states(kit, ids) == {JobState.SUCCEEDED})
    await kit.settled()
    put.opened.set()
    await until(lambda: kit.bucket_worker.due_fetcher.onboarded == 2)
    await kit.settled()
    assert len(ran) == 2
    assert len(kit.store.of("assign")) == 1, "nothing is left to be put"


# ---------------------------------------------------------------- among others


@pytest.fixture
async def crowd() -> AsyncIterator[Kit]:
    """An agent of a cluster that has others, with five slots."""
    async with Kit(handlers, AgentSettings(slots=5)) as made:
        yield made


def owned(kit: Kit, bucket: OwnedBucket, ids: list[bytes]) -> int:
    """How many of the jobs the bucket has taken."""
    return sum(kit.master.rows[job_id].bucket_id == bucket.fence.bucket_id for job_id in ids)


async def test_jobs_that_come_due_together_spread_over_all_buckets_that_are_hinted(crowd: Kit) -> None:
    buckets = [await opened(crowd) for _ in range(3)]
    ids = held(crowd, 150)
    for job_id in ids:
        crowd.master.entries[job_id] = Entry(job_id, 1, "wait", b"{}")
    for bucket in buckets:
        hint(crowd, bucket)
    await until(lambda: all(owned(crowd, bucket, ids) >= 20 for bucket in buckets), "each to have a share")
    await turns()
    assert [owned(crowd, bucket, ids) for bucket in buckets] == [20, 20, 20], "four for a slot that is busy, no more"
    for _ in range(150):  # whoever gets work done takes more, and a hint is worth a turn
        finish.release()
    await until(lambda: states(crowd, ids) == {JobState.SUCCEEDED})


async def test_jobs_due_later_are_taken_turn_by_turn(crowd: Kit) -> None:
    buckets = [await opened(crowd) for _ in range(3)]
    ids = held(crowd, 150, due_seconds=200.0)
    for turn in range(1, 4):
        for bucket in buckets:
            hint(crowd, bucket)
        await until(lambda: all(owned(crowd, bucket, ids) >= turn * 10 for bucket in buckets))  # noqa: B023
        await turns()
        assert [owned(crowd, bucket, ids) for bucket in buckets] == [turn * 10] * 3


async def test_a_bucket_that_gets_much_done_takes_much(crowd: Kit) -> None:
    bucket = await opened(crowd)
    for _ in range(3):
        crowd.clock.now += 1.5
        crowd.trust()
        crowd.master.now_us = crowd.clock.wall_us()
        ids = held(crowd, 3000)
        hint(crowd, bucket)
        await until(lambda: states(crowd, ids) == {JobState.SUCCEEDED})  # noqa: B023
    assert max(limit for _, _, limit in crowd.master.of("onboard")) == 1000


async def test_a_bucket_of_more_slots_than_two_batches_goes_on_without_a_hint_for_each() -> None:
    async with Kit(handlers, AgentSettings(slots=40)) as kit:
        kit.bucket_worker.due_fetcher._thresholds = Thresholds(transfer_batch=5)
        bucket = await opened(kit)
        ids = held(kit, 60)
        for job_id in ids:
            kit.master.entries[job_id] = Entry(job_id, 1, "wait", b"{}")
        hint(kit, bucket)
        await until(lambda: kit.bucket_worker.executor.running >= 10)
        await turns()
        for _ in ids:
            finish.release()
        await until(lambda: states(kit, ids) == {JobState.SUCCEEDED}, "all of them, after one hint")
