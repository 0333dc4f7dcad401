"""Jobs with large arguments: no statement, claim, page or call is larger than a batch, and what timed out is never sent again
at the same size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.job import Entry
from jobmaster.rules.batching import BATCH_BYTES, CLAIMED_BYTES, OUTCOME_BYTES, BatchSize
from jobmaster.settings.model import AgentSettings
from jobmaster_agents import call_retry
from jobmaster_agents.outcomes import kept, writer
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import Gate, Row, WorkerHarness, turns
from tests.support.waiting import until

handlers = Handlers()
MEBIBYTE = 1024 * 1024
TEXT = b'{"text":"' + b"x" * (MEBIBYTE - 11) + b'"}'
assert len(TEXT) == MEBIBYTE
started: list[bytes] = []
go: list[bool] = []


@handlers.job(name="echo")
async def echo(text: str) -> str:
    return "done"


@handlers.job(name="wait", timeout=1e6)
async def wait(text: str) -> None:
    started.append(b"wait")
    await until(lambda: bool(go), "to be let go")


@handlers.job(name="fail", max_attempts=2, backoff=7, backoff_jitter=0.0)
async def fail(text: str) -> None:
    raise RuntimeError("on purpose")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(kept, "_LOOK_SECONDS", 0.0)
    started.clear()
    go.clear()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    async with WorkerHarness(handlers, AgentSettings(slots=8)) as made:
        yield made


def large(count: int, name: str = "echo", token: int = 1) -> list[Entry]:
    return [Entry(new_id(), token, name, TEXT) for _ in range(count)]


def small(count: int) -> list[Entry]:
    return [Entry(new_id(), 1, "echo", b'{"text":""}') for _ in range(count)]


def batches(harness: WorkerHarness, *names: str) -> list[int]:
    """Bytes of each statement's rows."""
    rows = [args[-1] for called, args in harness.master.calls if called in names]
    return [sum(len(row.args) for row in some) for some in rows]


def timed_out(*_: Any) -> Unavailable:
    return Unavailable("canceling statement due to statement timeout", timed_out=True)


def sizes(calls: Sequence[tuple[Any, ...]]) -> list[int]:
    return [len(args[-1]) for args in calls]


def claimed_bytes(harness: WorkerHarness, owned: OwnedBucket) -> int:
    return sum(len(entry.args) for entries in harness.lists(owned).values() for entry in entries)


# ---------------------------------------------------------------- statements


@pytest.mark.parametrize(
    ("token", "name", "statement"), [(1, "echo", "copy_final"), (2, "echo", "record_final"), (1, "fail", "retry_here")]
)
async def test_no_statement_carries_more_than_a_batch(
    harness: WorkerHarness, token: int, name: str, statement: str
) -> None:
    bucket = harness.bucket()
    entries = large(20, name, token)
    if token > 1:
        for entry in entries:
            harness.master.rows[entry.id] = Row("ASSIGNED", token, bucket.fence.bucket_id, bucket.fence.epoch)
    harness.submit(bucket, entries)
    await until(lambda: sum(batches(harness, statement)) >= 20 * MEBIBYTE, "all to be written")
    assert max(batches(harness, statement)) <= BATCH_BYTES


async def test_in_flight_rows_are_cut_too(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, large(20, "wait"))
    await until(lambda: len(started) == 8)
    jobs = harness.bucket_worker.job_table.of_bucket(bucket.fence.bucket_id)
    await harness.bucket_worker.in_flight.write(bucket, jobs)
    assert max(batches(harness, "persist")) <= BATCH_BYTES
    assert sum(batches(harness, "persist")) == len(jobs) * MEBIBYTE
    go.append(True)
    await harness.settled()


@pytest.mark.parametrize("unknown", [False, True], ids=["cancelled by the server", "no answer in time"])
async def test_what_timed_out_is_sent_in_halves_and_never_again_at_that_size(
    harness: WorkerHarness, unknown: bool
) -> None:
    bucket = harness.bucket()
    failure = OutcomeUnknown("the answer did not come", timed_out=True) if unknown else timed_out()
    gate = Gate()
    harness.master.script["copy_final"] += [
        gate,
        failure,
    ]  # the first writer stands, so that a batch gathers for the second
    harness.master.script["record_final"] += [failure, failure]
    harness.submit(bucket, small(1))
    await gate.reached.wait()
    harness.submit(bucket, small(64))
    await until(lambda: len(harness.master.finals) == 64, "the outcomes")
    first = sizes(harness.master.of("copy_final"))[1]
    tries = sizes(harness.master.of("record_final"))
    assert tries[0] <= first // 2
    assert tries[1] <= tries[0] // 2
    assert tries[2] <= tries[1] // 2
    gate.opened.set()
    await harness.settled()
    assert len({row.id for row in harness.master.finals}) == 65
    assert harness.bucket_worker.outcome_writer.quarantined == harness.bucket_worker.outcome_writer.refused == 0


async def test_batches_after_a_time_out_are_as_small(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    outcome_writer = harness.bucket_worker.outcome_writer
    outcome_writer.size = BatchSize(writer.BATCH_ROWS, BATCH_BYTES)
    outcome_writer.size.timed_out(20, BATCH_BYTES)
    harness.submit(bucket, small(300))
    await harness.settled()
    assert max(sizes(harness.master.of("copy_final"))) <= 200, "ten, and some more after each success"
    assert min(sizes(harness.master.of("copy_final"))) <= 10 or len(harness.master.of("copy_final")) > 1


async def test_a_single_row_that_times_out_is_repeated(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.master.script["copy_final"].append(timed_out())
    harness.master.script["record_final"] += [timed_out()] * 3
    harness.submit(bucket, small(1))
    await harness.settled()
    assert len(harness.master.finals) == 1


async def test_what_is_given_back_is_halved_too(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.master.script["hold"] += [timed_out(), timed_out()]
    assert await harness.bucket_worker.outcome_writer.give_back(bucket, small(8))
    tries = sizes(harness.master.of("hold"))
    assert tries[:4] == [8, 4, 2, 2]
    assert sum(tries[2:]) == 8


# ---------------------------------------------------------------- memory


async def test_the_buffer_of_a_bucket_is_bounded_in_bytes_and_its_slots_are_filled(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, large(60, "wait"))
    await until(lambda: len(started) == 8, "every slot to run")
    await turns()
    claimed = claimed_bytes(harness, bucket)
    assert CLAIMED_BYTES - BATCH_BYTES <= claimed <= CLAIMED_BYTES
    assert all(sum(len(entry.args) for entry in entries) <= BATCH_BYTES for entries in harness.lists(bucket).values())
    go.append(True)
    await harness.settled()
    assert len(harness.master.finals) == 60
    assert harness.bucket_worker.job_table.bytes_of(bucket.fence.bucket_id) == 0


async def test_more_slots_than_the_bound_holds_are_filled_all_the_same() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=24, max_running=24, bucket_buffer=10)) as harness:
        bucket = harness.bucket()
        harness.submit(bucket, large(60, "wait"))
        await until(lambda: len(started) == 24, "every slot to run")
        await turns()
        assert claimed_bytes(harness, bucket) == 24 * MEBIBYTE, "and nothing is buffered"
        go.append(True)
        await harness.settled()
        assert len(harness.master.finals) == 60


async def test_outcomes_that_pile_up_stop_claims_by_their_bytes(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    gates = [Gate() for _ in range(writer.WRITERS)]
    harness.master.script["copy_final"] += gates
    harness.submit(bucket, large(90))
    await until(lambda: harness.bucket_worker.outcome_writer.crowded, "the backlog to be large")
    await turns()
    assert harness.bucket_worker.outcome_writer.backlog < writer.BACKLOG_ROWS_RELIEF
    lying = len(harness.store.buckets[bucket.fence.bucket_id].pending)
    assert lying >= 90 - OUTCOME_BYTES // MEBIBYTE - BATCH_BYTES // MEBIBYTE - 1, "claimed although outcomes pile up"
    for gate in gates:
        gate.opened.set()
    await harness.settled()
    assert len(harness.master.finals) == 90
    assert not harness.bucket_worker.outcome_writer.crowded


# ---------------------------------------------------------------- outcomes kept in the store


async def test_kept_outcomes_are_put_and_applied_in_batches(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    harness.suspend()
    harness.submit(bucket, large(20))
    await until(lambda: len(harness.store.buckets[bucket.fence.bucket_id].kept) == 20, "all to be kept")
    calls = [sum(map(len, outcomes)) for _, outcomes, _ in harness.store.of("keep_outcomes")]
    assert max(calls) <= BATCH_BYTES + len(calls) * 200
    harness.master.script["copy_final"].append(timed_out())
    harness.trust()
    await until(lambda: not harness.store.buckets[bucket.fence.bucket_id].kept, "the store to be empty")
    assert len({row.id for row in harness.master.finals}) == 20
    first, *others = [len(page) for _, page, _ in harness.store.of("remove_kept")]
    assert first <= BATCH_BYTES // MEBIBYTE
    assert max(others) <= first
    assert max(batches(harness, "copy_final", "record_final")) <= BATCH_BYTES
