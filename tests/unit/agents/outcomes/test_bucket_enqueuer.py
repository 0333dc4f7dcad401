"""Jobs that are retried in their own bucket: the row first, the copy second, whatever is refused in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import InputError, OutcomeUnknown, Refused
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, HoldRow, JobState
from jobmaster.ports import ReplyStatus, Written
from jobmaster_agents import call_retry
from tests.support.bucket_worker_fixture import DOWN, Gate, Row, WorkerHarness
from tests.support.waiting import until

handlers = Handlers()


@handlers.job(name="fail", max_attempts=2, backoff=7, backoff_jitter=0.0)
async def fail() -> None:
    raise RuntimeError("on purpose")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers) as made:
        yield made


def job(name: str = "fail", token: int = 1) -> Entry:
    return Entry(new_id(), token, name, b"{}")


def state_of(harness: WorkerHarness, entry: Entry) -> str:
    row = harness.master.rows.get(entry.id)
    return row.state if row is not None else "none"


async def test_a_retry_is_marked_first_and_put_second(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    put = Gate()
    harness.store.script["assign"].append(put)
    entry = job("fail")
    harness.submit(bucket, [entry])
    await put.reached.wait()
    assert harness.master.rows[entry.id].identity == (2, bucket.fence.bucket_id, 1)
    put.opened.set()
    await harness.settled()
    [(due_us, again)] = harness.store.buckets[bucket.fence.bucket_id].assigned
    assert (again.token, again.attempt, again.due_us) == (2, 1, due_us)
    assert due_us == harness.clock.wall_us() + 7_000_000
    harness.clock.now += 8.0
    harness.bucket_worker.claimers[bucket.fence.bucket_id].wake()
    await until(lambda: state_of(harness, entry) == JobState.FAILED)
    assert len(harness.master.attempts) == 1


@pytest.mark.parametrize("answers", [[DOWN, DOWN, DOWN], [ReplyStatus.CLOSED]])
async def test_a_retry_whose_copy_cannot_be_put_goes_back_under_its_new_identity(
    harness: WorkerHarness, answers: list[object]
) -> None:
    bucket = harness.bucket()
    harness.store.script["assign"] += answers
    harness.master.script["hold"] += [DOWN, Refused("permission denied for a moment")]
    entry = job("fail")
    harness.submit(bucket, [entry])
    await harness.settled()
    row = harness.master.rows[entry.id]
    assert (row.state, row.token) == ("HELD", 2)
    assert len(harness.master.attempts) == 1, "the attempt is recorded once"


async def test_a_retry_whose_put_is_not_answered_is_put_again_until_it_is(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.store.script["assign"] += [OutcomeUnknown("no answer"), *[DOWN] * 10]
    entry = job("fail")
    harness.submit(bucket, [entry])
    await until(lambda: len(harness.store.of("assign")) > 11)
    row = harness.master.rows[entry.id]
    assert (row.state, row.token) == ("ASSIGNED", 2)
    enqueuer = harness.bucket_worker.outcome_writer.bucket_enqueuer
    await until(lambda: not enqueuer.is_repeating(bucket.fence.bucket_id))
    assert enqueuer.may_come([entry.id]), "a try that was not answered may be done late"


async def test_a_retry_that_meets_a_cancel_request_is_not_put_back(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    entry = job("fail", token=2)
    harness.master.rows[entry.id] = Row("ASSIGNED", 2, bucket.fence.bucket_id, 1, cancel=True)
    harness.submit(bucket, [entry])
    await harness.settled()
    assert state_of(harness, entry) == "CANCELLED"
    assert not harness.store.of("assign")


async def test_a_retry_in_a_bucket_that_completes_meanwhile_goes_to_the_master(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    write = Gate(Written(False, frozenset()))
    harness.master.script["retry_here"].append(write)
    entry = job("fail")
    harness.submit(bucket, [entry])
    await write.reached.wait()
    bucket.closed = True
    write.opened.set()
    await harness.settled()
    assert state_of(harness, entry) == "HELD"
    assert not bucket.lost


async def test_a_half_that_was_accepted_is_put_although_the_lock_refuses_the_other(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    retry, sizes = harness.master.retry_here, []

    async def split(fence: Fence, rows: Sequence[HoldRow]) -> Written:
        sizes.append(len(rows))
        if len(rows) > 1:
            raise InputError("a value is refused")
        bucket.closed = len(sizes) == 3  # it begins to complete between the halves
        return Written(False, frozenset()) if bucket.closed else await retry(fence, rows)

    harness.master.retry_here = split  # type: ignore[method-assign]
    entries = [job("fail"), job("fail")]
    harness.submit(bucket, entries)
    await harness.settled()
    assert sizes == [2, 1, 1]
    assert sorted((harness.master.rows[entry.id].state, harness.master.rows[entry.id].token) for entry in entries) == [
        ("ASSIGNED", 2), ("HELD", 1),
    ]  # fmt: skip
    (accepted,) = [entry.id for entry in entries if state_of(harness, entry) == "ASSIGNED"]
    assert [(each.id, each.token) for _, each in harness.store.buckets[bucket.fence.bucket_id].assigned] == [
        (accepted, 2)
    ]
    assert len(harness.master.attempts) == 2, "each attempt is recorded once"
