"""Jobs that are started once and never again: when they may start, and the outcome of one that did not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_error, encode_headers
from jobmaster.handlers import Handlers, Retry
from jobmaster.model.job import Entry, ErrorInfo, FinalRow, Headers, JobState
from jobmaster.settings.model import AgentSettings
from jobmaster_agents import call_retry
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import LOST, Gate, WorkerHarness, turns
from tests.support.waiting import until
from tests.unit.agents.execute.test_dispatch import SlowPool

ONCE = encode_headers(Headers(at_most_once=True))
handlers = Handlers()
ran: list[str] = []
go = asyncio.Event()
release = threading.Event()


@handlers.job(name="once", delivery="at_most_once", timeout=1e6)
async def once() -> str:
    ran.append("once")
    await go.wait()
    return "done"


@handlers.job(name="usual", timeout=1e6, max_attempts=4)
async def usual() -> None:
    ran.append("usual")
    await go.wait()


@handlers.job(name="asks_again", delivery="at_most_once")
async def asks_again() -> None:
    raise Retry(after=0)


@handlers.job(name="thread", delivery="at_most_once", timeout=1e6)
def in_thread() -> None:
    ran.append("thread")
    release.wait(10)


@handlers.job(name="usual_thread", timeout=1e6)
def in_a_thread_as_ever() -> None:
    ran.append("usual thread")


@handlers.job(name="fenced_thread", start="fenced", timeout=1e6)
def fenced_in_thread() -> None:
    ran.append("fenced thread")


@handlers.job(name="leased_thread", timeout=1e6)
def leased_in_thread() -> None:
    ran.append("leased")


@handlers.job(name="leased_process", mode="process", timeout=1e6)
async def leased_in_process() -> None:
    raise AssertionError("worker processes are not started here")


@handlers.job(name="process", mode="process", delivery="at_most_once", timeout=1e6)
async def in_process() -> None:
    raise AssertionError("worker processes are not started here")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    go.clear()
    release.clear()
    yield
    release.set()


@pytest.fixture
async def harness() -> AsyncIterator[WorkerHarness]:
    made = WorkerHarness(handlers, AgentSettings(slots=4, threads=1, isolated_processes=1))
    made.pool = pool = SlowPool()  # type: ignore[attr-defined]
    made.bucket_worker._dispatcher._pool = pool  # type: ignore[assignment]
    async with made:
        yield made


def job(name: str, headers: bytes = b"") -> Entry:
    return Entry(new_id(), 1, name, b"{}", headers=headers)


def outcome(harness: WorkerHarness, entry: Entry) -> tuple[str, str]:
    """Final state and reason."""
    row: FinalRow = next(row for row in harness.master.finals if row.id == entry.id)
    return row.state, decode_error(row.error).reason if row.error else ""


def leave(harness: WorkerHarness, bucket: OwnedBucket) -> asyncio.Task[list[bytes]]:
    return asyncio.ensure_future(
        harness.bucket_worker.complete([bucket.fence.bucket_id], 0.0, "on request of the test")
    )


@pytest.mark.parametrize(("name", "headers"), [("once", b""), ("usual", ONCE)], ids=["by the handler", "by the job"])
async def test_it_starts_after_an_accepted_write_with_its_state_and_headers(
    harness: WorkerHarness, name: str, headers: bytes
) -> None:
    bucket, write = harness.bucket(), Gate()
    harness.master.script["persist"].append(write)
    entry = job(name, headers)
    harness.submit(bucket, [entry])
    await write.reached.wait()
    await turns()
    assert not ran
    ((_, (row,)),) = harness.master.of("persist")
    assert (row.state, row.headers) == (JobState.PROCESSING, ONCE)
    write.opened.set()
    await until(lambda: ran)
    go.set()
    await harness.settled()
    assert outcome(harness, entry) == ("SUCCEEDED", "")


async def test_the_start_of_the_same_handler_without_the_word_is_as_ever(harness: WorkerHarness) -> None:
    harness.submit(harness.bucket(), [job("usual")])
    await until(lambda: ran)
    assert not harness.master.of("persist")
    go.set()
    await harness.settled()


async def test_an_unknown_start_is_asked_again_and_starts_once(harness: WorkerHarness) -> None:
    harness.master.script["persist"] += [LOST, LOST]
    harness.submit(harness.bucket(), [job("once")])
    await until(lambda: ran)
    go.set()
    await harness.settled()
    assert ran == ["once"]


async def test_a_start_that_stays_unknown_until_the_bucket_is_anothers_does_not_happen(
    harness: WorkerHarness,
) -> None:
    bucket, again = harness.bucket(), Gate()
    harness.master.script["persist"] += [LOST, again]
    harness.submit(bucket, [job("once")])
    await again.reached.wait()
    harness.rescue(bucket)
    again.opened.set()
    await until(lambda: bucket.lost)
    await turns()
    assert not ran
    assert not harness.master.finals


async def test_past_the_grace_one_that_runs_is_abandoned_and_one_that_waits_is_given_back(
    harness: WorkerHarness,
) -> None:
    bucket = harness.bucket()
    runs, waits = [job("once") for _ in range(4)], job("once")
    harness.submit(bucket, [*runs, waits])
    await until(lambda: len(ran) == 4)
    assert await leave(harness, bucket) == []
    assert [outcome(harness, entry) for entry in runs] == [("FAILED", "abandoned")] * 4
    assert harness.master.rows[waits.id].state == "HELD"
    assert not harness.master.attempts
    assert harness.bucket_worker.outcome_builder.abandoned == 4


def starts(harness: WorkerHarness) -> set[bytes]:
    """Ids of the jobs whose rows show that they may have begun."""
    return {job_id for job_id, row in harness.master.rows.items() if row.state == "PROCESSING"}


async def persisted(harness: WorkerHarness) -> None:
    """Whatever is claimed gets its row, as a crash would find it."""
    harness.clock.now += 2.0
    harness.trust()
    await harness.bucket_worker.in_flight_writer.tick()


async def test_in_threads_only_what_a_thread_has_begun_is_marked_as_begun(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    runs, waits = job("thread"), [job("thread"), job("usual_thread", ONCE), job("fenced_thread")]
    harness.submit(bucket, [runs, *waits])
    await until(lambda: ran and harness.bucket_worker.executor.running == 4)
    await persisted(harness)
    assert starts(harness) == {runs.id}
    assert {harness.master.rows[entry.id].state for entry in waits} == {"ASSIGNED"}
    assert await leave(harness, bucket) == []
    assert outcome(harness, runs) == ("FAILED", "abandoned")
    assert {harness.master.rows[entry.id].state for entry in waits} == {"HELD"}, (
        "this agent knows that they never began"
    )
    assert ran == ["thread"]


async def test_what_waited_for_a_thread_is_authorised_when_its_turn_has_come(harness: WorkerHarness) -> None:
    bucket = harness.bucket()
    runs, waits = job("thread"), job("thread")
    harness.submit(bucket, [runs, waits])
    await until(lambda: ran and harness.bucket_worker.executor.running == 2)
    write = Gate()
    harness.master.script["persist"].append(write)
    release.set()
    await write.reached.wait()
    await turns()
    assert ran == ["thread"], "not before the master has accepted it"
    assert harness.master.of("persist")[-1][1][0].headers == ONCE
    write.opened.set()
    await harness.settled()
    assert ran == ["thread", "thread"]
    assert [outcome(harness, entry)[0] for entry in (runs, waits)] == ["SUCCEEDED", "SUCCEEDED"]


async def authorising(harness: WorkerHarness, name: str = "thread") -> tuple[OwnedBucket, Entry, Gate]:
    """A job that the room has let in and whose write is under way."""
    bucket, write, entry = harness.bucket(), Gate(), job(name)
    harness.master.script["persist"].append(write)
    harness.submit(bucket, [entry])
    await write.reached.wait()
    return bucket, entry, write


def is_quiet(harness: WorkerHarness) -> bool:
    rooms = [harness.bucket_worker._dispatcher._in_threads, harness.bucket_worker._dispatcher._in_processes]
    return not any(room.admitted or room.waiting for room in rooms) and not harness.bucket_worker.executor.running


@pytest.mark.parametrize("name", ["thread", "process"])
async def test_stopped_while_its_start_is_being_written_it_never_began(harness: WorkerHarness, name: str) -> None:
    bucket, entry, write = await authorising(harness, name)
    leaving = leave(harness, bucket)
    await turns()
    write.opened.set()
    assert await leaving == []
    assert harness.master.rows[entry.id].state == "HELD"
    assert is_quiet(harness)
    assert not ran


@pytest.mark.parametrize("name", ["thread", "process"])
async def test_cancelled_while_its_start_is_being_written_it_ends_unstarted(harness: WorkerHarness, name: str) -> None:
    _, entry, write = await authorising(harness, name)
    harness.bucket_worker.cancel([entry.id])
    await turns()
    write.opened.set()
    await harness.settled()
    assert outcome(harness, entry)[0] == "CANCELLED"
    assert is_quiet(harness)
    assert not ran


@pytest.mark.parametrize("name", ["thread", "process"])
async def test_its_bucket_lost_while_its_start_is_being_written_it_does_not_start(
    harness: WorkerHarness, name: str
) -> None:
    bucket, _, write = await authorising(harness, name)
    harness.rescue(bucket)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    write.opened.set()
    await until(lambda: is_quiet(harness))
    assert not ran
    assert not harness.master.finals


@pytest.mark.parametrize("name", ["thread", "process"])
async def test_the_master_gone_while_its_start_is_being_written_it_gives_its_place_to_others(
    harness: WorkerHarness, name: str
) -> None:
    pool: SlowPool = harness.pool  # type: ignore[attr-defined]
    bucket, entry, write = await authorising(harness, name)
    harness.suspend()
    other = job("leased_thread" if name == "thread" else "leased_process")
    harness.submit(bucket, [other])
    if name == "process":
        await until(lambda: other.id in pool.begun)
        pool.orders[other.id][-1].set_result(AttemptResult(kind=ResultKind.OK))
    else:
        await until(lambda: ran == ["leased"])
    await until(lambda: harness.bucket_worker.executor.running == 1)
    assert entry.id not in pool.begun
    write.opened.set()
    harness.trust()
    release.set()
    if name == "process":
        await until(lambda: entry.id in pool.begun)
        pool.orders[entry.id][-1].set_result(AttemptResult(kind=ResultKind.OK))
    await harness.settled()
    assert outcome(harness, entry)[0] == "SUCCEEDED"
    assert is_quiet(harness)


async def test_in_worker_processes_it_is_authorised_when_its_process_is_there(harness: WorkerHarness) -> None:
    pool: SlowPool = harness.pool  # type: ignore[attr-defined]
    pool.ready.clear()
    entry = job("process")
    harness.submit(harness.bucket(), [entry])
    await until(lambda: entry.id in pool.orders)
    await persisted(harness)
    assert harness.master.rows[entry.id].state == "ASSIGNED", "its process has not even been started"
    pool.ready.set()
    await until(lambda: starts(harness) == {entry.id})
    pool.orders[entry.id][0].set_result(AttemptResult(kind=ResultKind.OK))
    await harness.settled()


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [
        (ResultKind.CANCELLED, "FAILED", "abandoned"),
        (ResultKind.CRASHED, "FAILED", "crashed"),
        (ResultKind.TIMEOUT, "FAILED", "timeout"),
        (ResultKind.RETRY, "FAILED", "error"),
        (ResultKind.NOT_STARTED, "HELD", ""),
    ],
)
async def test_in_worker_processes_only_what_never_began_comes_again(
    harness: WorkerHarness, kind: ResultKind, state: str, reason: str
) -> None:
    pool: SlowPool = harness.pool  # type: ignore[attr-defined]
    entry = job("process")
    harness.submit(harness.bucket(), [entry])
    await until(lambda: entry.id in pool.orders)
    info = ErrorInfo(type="X", message="x", reason=reason or "crashed")
    pool.orders[entry.id][0].set_result(AttemptResult(kind=kind, error=info))
    await harness.settled()
    assert harness.master.rows[entry.id].state == state
    if state == "FAILED":
        assert outcome(harness, entry) == (state, reason)


async def test_one_whose_worker_died_before_it_began_and_whose_next_one_is_not_there_yet_is_given_back(
    harness: WorkerHarness,
) -> None:
    pool: SlowPool = harness.pool  # type: ignore[attr-defined]
    pool.dying = 1
    bucket, entry = harness.bucket(), job("process")
    harness.submit(bucket, [entry])
    await until(lambda: starts(harness) == {entry.id} and not pool.ready.is_set())
    assert await leave(harness, bucket) == []
    assert harness.master.rows[entry.id].state == "HELD"
    assert is_quiet(harness)


async def test_a_worker_process_that_fails_in_an_unknown_way_abandons_its_job(harness: WorkerHarness) -> None:
    pool: SlowPool = harness.pool  # type: ignore[attr-defined]
    entry = job("process")
    harness.submit(harness.bucket(), [entry])
    await until(lambda: entry.id in pool.orders)
    pool.orders[entry.id][0].set_exception(BrokenPipeError("perhaps it has begun"))
    await harness.settled()
    assert harness.master.rows[entry.id].state == "FAILED"


@pytest.mark.parametrize(("name", "headers"), [("asks_again", b""), ("asks_again", ONCE)])
async def test_asking_for_another_attempt_is_a_failure(harness: WorkerHarness, name: str, headers: bytes) -> None:
    entry = job(name, headers)
    harness.submit(harness.bucket(), [entry])
    await harness.settled()
    assert outcome(harness, entry) == ("FAILED", "retry")


async def test_a_time_out_is_its_end(harness: WorkerHarness) -> None:
    entry = job("usual", encode_headers(Headers(at_most_once=True, timeout_seconds=5.0, max_attempts=3)))
    harness.submit(harness.bucket(), [entry])
    await until(lambda: ran)
    harness.clock.now += 6.0
    harness.trust()
    await harness.settled()
    assert outcome(harness, entry) == ("FAILED", "timeout")
