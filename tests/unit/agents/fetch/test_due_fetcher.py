"""From HELD into a bucket: mark first, put second, what cannot be put goes back, nothing stalls and nothing is flooded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import OutcomeUnknown, Refused
from jobmaster.model.job import Entry, JobState
from jobmaster.model.pause import Pause, PauseKind, PausesInForce
from jobmaster.ports import ReplyStatus
from jobmaster.settings.model import AgentSettings, Thresholds
from jobmaster_agents import call_retry
from jobmaster_agents.outcomes.bucket_enqueuer import UNSURE_SECONDS
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, Row, WorkerHarness, turns
from tests.support.waiting import until

UNKNOWN = OutcomeUnknown("no answer")
"""The put was not done."""
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
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    ran.clear()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers) as made:
        made.bucket_worker.due_fetcher.alone = True
        yield made


def held(harness: WorkerHarness, count: int, due_seconds: float = 0.0) -> list[bytes]:
    ids = []
    for _ in range(count):
        entry = Entry(new_id(), 1, "note", b"{}")
        harness.master.rows[entry.id] = Row("HELD", 1, due_us=harness.clock.wall_us() + int(due_seconds * 1e6))
        harness.master.entries[entry.id] = entry
        ids.append(entry.id)
    return ids


async def opened(harness: WorkerHarness) -> OwnedBucket:
    bucket = harness.bucket()
    await until(lambda: harness.master.of("onboard"))
    await turns()
    return bucket


def states(harness: WorkerHarness, ids: list[bytes]) -> set[str]:
    return {harness.master.rows[job_id].state for job_id in ids}


def hint(harness: WorkerHarness, bucket: OwnedBucket) -> None:
    harness.store.buckets[bucket.fence.bucket_id].hint = True
    harness.store.tokens.put_nowait(bucket.fence.bucket_id)


async def test_a_hint_fetches_all_due_jobs_batch_by_batch(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    ids = held(harness, 7500)
    hint(harness, bucket)
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED}, "all of them to run from one hint")
    assert len(ran) == 7500
    queries = len(harness.master.of("onboard"))
    await turns()
    assert len(harness.master.of("onboard")) == queries, "with nothing left the master is left alone"


async def test_a_batch_is_no_larger_than_the_configured_one(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    harness.bucket_worker.due_fetcher._thresholds = Thresholds(transfer_batch=7)
    before, ids = len(harness.master.of("onboard")), held(harness, 30)
    hint(harness, bucket)
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})
    assert {limit for _, _, limit in harness.master.of("onboard")[before:]} == {7}
    assert max(len(items) for _, items in harness.store.of("assign")) == 7


async def test_a_new_bucket_looks_once_by_itself(harness: WorkerHarness) -> None:
    ids = held(harness, 3)
    harness.bucket()
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})


async def test_marked_first_and_put_second(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    put = Gate()
    harness.store.script["assign"].append(put)
    ids = held(harness, 2)
    hint(harness, bucket)
    await put.reached.wait()
    assert states(harness, ids) == {"ASSIGNED"}
    assert not harness.store.buckets[bucket.fence.bucket_id].assigned
    put.opened.set()
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})


async def test_the_next_batch_is_queried_while_one_is_put_but_not_above_the_low_water_mark(
    harness: WorkerHarness,
) -> None:
    bucket = await opened(harness)
    puts = [Gate(), Gate()]
    harness.store.script["assign"] += puts
    ids = held(harness, 5000)
    before = len(harness.master.of("onboard"))
    hint(harness, bucket)
    await until(lambda: all(put.reached.is_set() for put in puts))
    await turns()
    assert len(harness.master.of("onboard")) == before + 2
    puts[1].opened.set()  # in whichever order they arrive
    await turns()
    assert len(harness.store.buckets[bucket.fence.bucket_id].assigned) or ran
    puts[0].opened.set()
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})
    assert len(ran) == 5000


async def test_another_bucket_is_queried_while_two_batches_are_put(harness: WorkerHarness) -> None:
    buckets = [await opened(harness) for _ in range(3)]
    puts = [Gate(), Gate()]
    harness.store.script["assign"] += puts
    for bucket, put in zip(buckets, puts, strict=False):
        held(harness, 1)
        hint(harness, bucket)
        await put.reached.wait()
    [third] = held(harness, 1)
    hint(harness, buckets[2])
    await until(lambda: states(harness, [third]) == {JobState.SUCCEEDED}, "the third not to wait for the store")
    for put in puts:
        put.opened.set()


async def test_no_more_than_two_claims_at_once_in_the_master(harness: WorkerHarness) -> None:
    buckets = [await opened(harness) for _ in range(3)]
    claims, put = [Gate(), Gate()], Gate()
    harness.master.script["onboard"] += claims
    harness.store.script["assign"].append(put)
    ids, before = held(harness, 3), len(harness.master.of("onboard"))
    for bucket in buckets:
        hint(harness, bucket)
    await until(lambda: all(claim.reached.is_set() for claim in claims))
    await turns()
    assert len(harness.master.of("onboard")) == before + 2
    claims[0].opened.set()
    await until(
        lambda: len(harness.master.of("onboard")) > before + 2, "the next to be sent as soon as one is answered"
    )
    assert put.reached.is_set()
    claims[1].opened.set()
    put.opened.set()
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})


async def test_copies_whose_put_got_no_answer_are_put_again(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    harness.store.script["assign"] += [DOWN, Refused("NOPERM")]
    ids = held(harness, 2)
    hint(harness, bucket)
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})
    assert not harness.master.of("release")


async def test_rows_whose_copies_cannot_be_put_go_back_and_come_again(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    harness.store.script["assign"] += [DOWN, DOWN, DOWN]
    ids = held(harness, 2)
    hint(harness, bucket)
    await until(lambda: harness.master.of("release"))
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})
    assert {harness.master.rows[job_id].token for job_id in ids} == {3}


async def test_a_put_without_an_answer_is_repeated_until_the_store_answers_and_no_row_goes_back(
    harness: WorkerHarness,
) -> None:
    bucket = await opened(harness)
    answer = Gate()
    harness.store.script["assign"] += [UNKNOWN, *[DOWN] * 10, answer]
    ids = held(harness, 2, due_seconds=200.0)
    hint(harness, bucket)
    await answer.reached.wait()
    queries = len(harness.master.of("onboard"))
    more = held(harness, 1)
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert len(harness.master.of("onboard")) == queries, "no more jobs are taken for a store that does not answer"
    answer.opened.set()
    await until(lambda: states(harness, more) == {JobState.SUCCEEDED})
    assert {(harness.master.rows[job_id].state, harness.master.rows[job_id].token) for job_id in ids} == {
        ("ASSIGNED", 2)
    }
    assert not harness.master.of("release")


async def test_a_copy_whose_put_got_no_answer_starts_once(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    harness.store.script["assign"] += [LOST, DOWN, DOWN, DOWN, DOWN]
    [job_id] = held(harness, 1)
    hint(harness, bucket)
    await until(lambda: states(harness, [job_id]) == {JobState.SUCCEEDED})
    await harness.settled()
    assert len(ran) == 1
    assert len(harness.master.finals) == 1


async def test_a_job_that_lies_in_a_bucket_after_a_lost_answer_is_not_held_for_a_cancel(harness: WorkerHarness) -> None:
    """Found by the chaos run: the row was given back and cancelled as HELD, and the copy started at its time."""
    bucket = await opened(harness)
    look = Gate()
    harness.store.script["assign"].append(LOST)
    harness.store.script["find"] += [DOWN, DOWN, DOWN, look]
    [job_id] = held(harness, 1, due_seconds=200.0)
    hint(harness, bucket)
    await look.reached.wait()
    row = harness.master.rows[job_id]
    assert (row.state, row.token) == ("ASSIGNED", 2), "a HELD row would be cancelled without a look at the bucket"
    assert [each.id for _, each in harness.store.buckets[bucket.fence.bucket_id].assigned] == [job_id]
    enqueuer = harness.bucket_worker.outcome_writer.bucket_enqueuer
    assert enqueuer.being_put([job_id]) == {job_id}
    look.opened.set()
    await until(lambda: not enqueuer.is_repeating(bucket.fence.bucket_id))
    assert len(harness.store.of("assign")) == 1, "it lies there"
    assert [each.id for _, each in harness.store.buckets[bucket.fence.bucket_id].assigned] == [job_id]
    assert enqueuer.may_come([job_id]) == {job_id}, "a try that was not answered may be done late"


async def test_a_copy_in_a_claimed_list_that_memory_does_not_know_is_not_put_again(harness: WorkerHarness) -> None:
    """The answers to the put and to the claim were lost together. A second copy would start a job that has ended."""
    bucket = await opened(harness)
    claim = Gate()
    harness.store.script["assign"].append(LOST)
    harness.store.script["claim"] += [LOST, claim]
    [job_id] = held(harness, 1)
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await claim.reached.wait()
    await until(lambda: harness.store.of("find"))
    await turns()
    lists = harness.store.buckets[bucket.fence.bucket_id]
    assert [each.id for entries in lists.claimed.values() for each in entries] == [job_id]
    assert not lists.assigned
    claim.opened.set()
    await until(lambda: states(harness, [job_id]) == {JobState.SUCCEEDED})
    await harness.settled()
    assert len(ran) == 1


async def test_a_repeated_put_that_is_refused_leaves_its_rows_to_the_comparison(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    harness.store.script["assign"] += [UNKNOWN, DOWN, DOWN, ReplyStatus.CLOSED]
    [job_id] = held(harness, 1, due_seconds=200.0)
    hint(harness, bucket)
    await until(lambda: len(harness.store.of("assign")) == 4)
    await turns()
    assert harness.master.rows[job_id].state == "ASSIGNED"
    assert not harness.master.of("release")
    assert not harness.bucket_worker.outcome_writer.bucket_enqueuer.is_repeating(bucket.fence.bucket_id)


async def test_a_put_that_cannot_be_done_late_any_more_and_fails_for_certain_is_left_to_the_comparison(
    harness: WorkerHarness,
) -> None:
    """A store that is full for hours keeps no jobs from agents of other stores."""
    bucket = await opened(harness)
    enqueuer = harness.bucket_worker.outcome_writer.bucket_enqueuer
    harness.store.script["assign"] += [UNKNOWN, *[DOWN] * 1000]
    [job_id] = held(harness, 1, due_seconds=200.0)
    hint(harness, bucket)
    await until(lambda: len(harness.store.of("assign")) > 10)
    assert enqueuer.being_put([job_id]) == {job_id}
    harness.clock.now += UNSURE_SECONDS + 1.0
    harness.trust()
    await until(lambda: not enqueuer.is_repeating(bucket.fence.bucket_id))
    assert not enqueuer.being_put([job_id])
    assert not harness.store.buckets[bucket.fence.bucket_id].assigned
    assert harness.master.rows[job_id].state == "ASSIGNED"


async def test_the_store_closed_meanwhile_gives_the_rows_back_and_keeps_the_bucket(
    harness: WorkerHarness,
) -> None:
    bucket = await opened(harness)
    harness.store.script["assign"].append(ReplyStatus.CLOSED)
    ids = held(harness, 2)
    bucket_ok = bucket.fence.bucket_id
    hint(harness, bucket)
    await until(lambda: harness.master.of("release"))
    assert states(harness, ids) <= {"HELD", "ASSIGNED", JobState.SUCCEEDED}
    assert bucket_ok in harness.ownership.buckets


async def test_refused_by_the_bucket_lock_the_bucket_is_forgotten(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    ids = held(harness, 2)
    harness.rescue(bucket)
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await until(lambda: bucket.lost)
    assert states(harness, ids) == {"HELD"}


async def test_an_outage_of_the_master_is_waited_out(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    harness.master.script["onboard"] += [DOWN, Refused("permission denied"), LOST, DOWN]
    ids = held(harness, 2)
    hint(harness, bucket)
    await until(lambda: len(harness.master.of("onboard")) >= 6)
    # What the lost answer had marked is left to anti-entropy, which finds no copy.
    assert states(harness, ids) == {"ASSIGNED"}
    more = held(harness, 2)
    hint(harness, bucket)
    await until(lambda: states(harness, more) == {JobState.SUCCEEDED})


async def test_a_bucket_full_of_later_jobs_still_takes_what_is_due_now(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    later = held(harness, 6000, due_seconds=200.0)
    hint(harness, bucket)
    await until(lambda: len(harness.store.buckets[bucket.fence.bucket_id].assigned) >= 2000)
    await turns()
    waiting = len(harness.store.buckets[bucket.fence.bucket_id].assigned)
    assert waiting <= 4000, "a bucket is not flooded with what is due in minutes"
    [now] = held(harness, 1)
    hint(harness, bucket)
    await until(lambda: states(harness, [now]) == {JobState.SUCCEEDED})
    assert len(harness.store.buckets[bucket.fence.bucket_id].assigned) == waiting
    assert states(harness, later) == {"ASSIGNED", "HELD"}


async def test_a_steady_stream_of_later_jobs_does_not_hold_up_what_is_due_now(harness: WorkerHarness) -> None:
    """Twenty fall due every second, so the next one is never far off; a rescued job is due at once all the same."""
    bucket = await opened(harness)
    for number in range(6000):
        held(harness, 1, due_seconds=0.05 * (number + 1))
    hint(harness, bucket)
    await until(lambda: len(harness.store.buckets[bucket.fence.bucket_id].assigned) >= 2000)
    await turns()
    [now] = held(harness, 1)
    hint(harness, bucket)
    await until(lambda: states(harness, [now]) == {JobState.SUCCEEDED})


async def test_claims_of_producers_jobs_cause_no_query(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    held(harness, 6000, due_seconds=200.0)
    hint(harness, bucket)
    await until(lambda: len(harness.store.buckets[bucket.fence.bucket_id].assigned) >= 2000)
    await turns()
    queries = len(harness.master.of("onboard"))
    for _ in range(50):
        harness.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
        await harness.settled()
    assert len(harness.master.of("onboard")) == queries


async def test_jobs_that_came_another_way_do_not_stall_the_count(harness: WorkerHarness) -> None:
    """Retries here, and jobs a producer put: claimed with a token above 1 and never fetched by us. And the reverse: fetched
    by us and spilled unrun."""
    bucket = await opened(harness)
    due = harness.bucket_worker.due_fetcher._due[bucket.fence.bucket_id]
    harness.store.buckets[bucket.fence.bucket_id].assigned += [
        (0, Entry(new_id(), 2, "note", b"{}")) for _ in range(10)
    ]
    harness.bucket_worker.claimers[bucket.fence.bucket_id].wake()
    await harness.settled()
    assert due.ahead == 0
    due.ahead = 5000  # whatever made it drift
    harness.submit(bucket, [Entry(new_id(), 1, "note", b"{}")])
    await harness.settled()
    assert due.ahead == 0, "a claim after which nothing waits sets it right"


async def test_nothing_is_marked_past_half_the_lease(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    ids = held(harness, 2)
    harness.clock.now = harness.ownership.soft_until + 1.0
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert states(harness, ids) == {"HELD"}
    harness.trust()
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})


async def test_a_bucket_over_its_high_water_mark_takes_no_more(harness: WorkerHarness) -> None:
    bucket = await opened(harness)
    held(harness, 3)
    harness.bucket_worker.due_fetcher.claimed(bucket.fence.bucket_id, 0, 0, None, crowded=True)
    queries = len(harness.master.of("onboard"))
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert len(harness.master.of("onboard")) == queries
    harness.bucket_worker.due_fetcher.claimed(bucket.fence.bucket_id, 0, 0, None, crowded=False)
    await until(lambda: len(ran) == 3)


async def test_a_frozen_bucket_with_a_hint_is_left_alone_until_it_is_resumed(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: the hint was kept, so the fetcher took the bucket again and again without a pause."""
    bucket = await opened(harness)
    queries = len(harness.master.of("onboard"))
    looks = 0

    def may_start(now: float, really: Callable[[float], bool] = harness.ownership.may_start) -> bool:
        nonlocal looks
        looks += 1
        assert looks < 1000, "the fetcher spins"
        return really(now)

    monkeypatch.setattr(harness.ownership, "may_start", may_start)
    harness.bucket_worker.freeze(bucket)
    harness.bucket_worker.due_fetcher.kick(bucket.fence.bucket_id)
    await turns()
    assert len(harness.master.of("onboard")) == queries
    ids = held(harness, 3)
    bucket.advance_epoch(bucket.fence.epoch)
    harness.bucket_worker.resume(bucket)
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})


async def test_a_put_that_is_repeated_starts_no_finished_job_again(harness: WorkerHarness) -> None:
    """The first put was done and its answer lost; the job was claimed, run and settled before the second one."""
    bucket = await opened(harness)
    put = Gate(LOST, late=True)
    harness.store.script["assign"].append(put)
    ids = held(harness, 2)
    hint(harness, bucket)
    await put.reached.wait()
    await until(lambda: states(harness, ids) == {JobState.SUCCEEDED})
    await harness.settled()
    put.opened.set()
    await until(lambda: harness.bucket_worker.due_fetcher.onboarded == 2)
    await harness.settled()
    assert len(ran) == 2
    assert len(harness.store.of("assign")) == 1, "nothing is left to be put"


# ---------------------------------------------------------------- among others


@pytest.fixture
async def crowd() -> AsyncIterator[WorkerHarness]:
    """An agent of a cluster that has others, with five slots."""
    async with WorkerHarness(handlers, AgentSettings(slots=5)) as made:
        yield made


def owned(harness: WorkerHarness, bucket: OwnedBucket, ids: list[bytes]) -> int:
    """How many of the jobs the bucket has taken."""
    return sum(harness.master.rows[job_id].bucket_id == bucket.fence.bucket_id for job_id in ids)


async def test_jobs_that_come_due_together_spread_over_all_buckets_that_are_hinted(crowd: WorkerHarness) -> None:
    buckets = [await opened(crowd) for _ in range(3)]
    ids = held(crowd, 150)
    for job_id in ids:
        crowd.master.entries[job_id] = Entry(job_id, 1, "wait", b"{}")
    for bucket in buckets:
        hint(crowd, bucket)
    await until(lambda: all(owned(crowd, bucket, ids) >= 20 for bucket in buckets), "each to have a share")
    await turns()
    assert [owned(crowd, bucket, ids) for bucket in buckets] == [20, 20, 20], "four for a slot that is busy, no more"
    for _ in range(150):  # an owner that finishes jobs takes more, and a hint is worth a turn
        finish.release()
    await until(lambda: states(crowd, ids) == {JobState.SUCCEEDED})


async def test_jobs_due_later_are_taken_turn_by_turn(crowd: WorkerHarness) -> None:
    buckets = [await opened(crowd) for _ in range(3)]
    ids = held(crowd, 150, due_seconds=200.0)
    for turn in range(1, 4):
        for bucket in buckets:
            hint(crowd, bucket)
        await until(lambda: all(owned(crowd, bucket, ids) >= turn * 10 for bucket in buckets))  # noqa: B023
        await turns()
        assert [owned(crowd, bucket, ids) for bucket in buckets] == [turn * 10] * 3


async def test_a_bucket_that_gets_much_done_takes_much(crowd: WorkerHarness) -> None:
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
    async with WorkerHarness(handlers, AgentSettings(slots=40)) as harness:
        harness.bucket_worker.due_fetcher._thresholds = Thresholds(transfer_batch=5)
        bucket = await opened(harness)
        ids = held(harness, 60)
        for job_id in ids:
            harness.master.entries[job_id] = Entry(job_id, 1, "wait", b"{}")
        hint(harness, bucket)
        await until(lambda: harness.bucket_worker.executor.running >= 10)
        await turns()
        for _ in ids:
            finish.release()
        await until(lambda: states(harness, ids) == {JobState.SUCCEEDED}, "all of them, after one hint")


async def test_an_agent_whose_every_handler_waits_for_a_breaker_fetches_its_trials() -> None:
    guarded = Handlers()
    guarded.job(name="note", breaker="api")(note)
    async with WorkerHarness(guarded) as harness:
        harness.bucket_worker.due_fetcher._served = ["note"]
        bucket = await opened(harness)
        ids = held(harness, 3)
        breaker = Pause(kind=PauseKind.BREAKER, value="api", actor="", reason="", since_us=0, trials=(ids[1],))
        harness.bucket_worker.pauses.take(PausesInForce(1, (breaker,)), harness.clock.now)
        harness.bucket_worker.apply_pauses()
        hint(harness, bucket)
        await until(lambda: harness.master.rows[ids[1]].state == JobState.SUCCEEDED, "the trial")
        assert states(harness, [ids[0], ids[2]]) == {"HELD"}
