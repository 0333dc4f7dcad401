"""The dispatcher: limits, deadlines and stops of jobs in threads, processes and tasks, and exact counters."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.errors import CodeError, Unavailable
from jobmaster.model.job import Entry, ErrorInfo, FinalRow, JobState
from jobmaster.model.pause import Pause, PauseKind, PausesInForce
from jobmaster.settings.model import AgentSettings
from jobmaster_agents import call_retry
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.execute.dispatched_job import ConcurrencyLimit, DispatchedJob
from jobmaster_agents.execute.process_pool.pool import MayBegin
from jobmaster_agents.execute.process_pool.protocol import ProcessJob
from jobmaster_agents.execute.process_pool.worker_process import GivenJob
from jobmaster_agents.outcomes.outcome_builder import StopCause
from jobmaster_agents.state.job_table import ClaimedJob
from jobmaster_agents.state.ownership import OwnedBucket
from tests.support.bucket_worker_fixture import Gate, WorkerHarness, turns
from tests.support.waiting import until, wait_until

handlers = Handlers()
ran: list[str] = []
release = threading.Event()


@handlers.job(name="thread", mode="thread", timeout=30)
def in_thread() -> str:
    ran.append("thread")
    release.wait(10)
    return "done"


@handlers.job(name="quick", mode="thread")
def quick_thread(ctx: JobContext) -> int:
    return ctx.attempt


@handlers.job(name="timed", mode="thread", timeout=30, warn_after=10)
def timed(ctx: JobContext) -> list[float | bool]:
    return [ctx.remaining_seconds, ctx.overdue]


@handlers.job(name="fenced", mode="thread", start="fenced")
def fenced_thread() -> None:
    ran.append("fenced")


@handlers.job(name="unavailable", mode="thread", max_attempts=1)
def says_unavailable() -> None:
    raise Unavailable("a server of the handler's own is down")


@handlers.job(name="process", mode="process", timeout=30, max_attempts=1)
def in_process() -> None:
    raise AssertionError("worker processes are not started here")


@handlers.job(name="note")
async def note() -> None:
    ran.append("note")


class SlowPool:
    """Worker processes that the test controls (the real ones have tests of their own)."""

    def __init__(self) -> None:
        self.orders: dict[bytes, list[asyncio.Future[AttemptResult]]] = {}
        self.alone: list[bytes] = []
        self.begun: set[bytes] = set()
        """Jobs that a worker was allowed to begin."""
        self.ready = asyncio.Event()
        """Workers are there."""
        self.ready.set()
        self.dying = 0
        """Workers that are dead when the start of their job is authorised; the next one is not there yet."""
        self.stopping = asyncio.Event()
        self.stopping.set()

    async def run(
        self, job: ProcessJob, begin: MayBegin, take_back: Callable[[], None] = lambda: None
    ) -> AttemptResult:
        future: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
        self.orders.setdefault(job.job_id, []).append(future)
        await self.ready.wait()
        begins = await begin()
        while begins and self.dying:
            self.dying -= 1
            take_back()
            self.ready.clear()
            await self.ready.wait()
            begins = await begin()
        if not begins:
            return AttemptResult(kind=ResultKind.NOT_STARTED)
        self.begun.add(job.job_id)
        try:
            return await future
        except asyncio.CancelledError:
            await self.stopping.wait()  # a request first, a kill after the grace time
            raise

    async def run_alone(self, job: ProcessJob, begin: MayBegin) -> AttemptResult:
        self.alone.append(job.job_id)
        return await self.run(job, begin)

    grows = True

    def room(self) -> None:
        """Every job comes by ``run``."""

    def take_back_stalled(self, now: float) -> None:
        pass

    def kill_all(self) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    ran.clear()
    release.clear()
    yield
    release.set()


class ProcessPoolHarness(WorkerHarness):
    """Two threads and two worker processes."""

    def __init__(self) -> None:
        super().__init__(handlers, AgentSettings(threads=2, isolated_processes=2))
        self.pool = SlowPool()
        self.bucket_worker._dispatcher._pool = self.pool  # type: ignore[assignment]

    async def __aenter__(self) -> ProcessPoolHarness:
        await super().__aenter__()
        return self


@pytest.fixture
async def harness() -> AsyncIterator[ProcessPoolHarness]:
    async with ProcessPoolHarness() as made:
        yield made
        release.set()


def job(name: str, rescues: int = 0, token: int = 1) -> Entry:
    return Entry(new_id(), token, name, b"{}", rescues=rescues)


def counters_are_back(harness: ProcessPoolHarness) -> bool:
    executor = harness.bucket_worker.executor
    return executor.running == 0 and not executor._dispatched and all(q.running == 0 for q in executor._queues.values())


def outcome(harness: ProcessPoolHarness, entry: Entry) -> FinalRow:
    return next(row for row in harness.master.finals if row.id == entry.id)


async def test_thread_jobs_run_and_the_counters_come_back(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    entries = [job("quick") for _ in range(20)]
    harness.submit(bucket, entries)
    await harness.settled()
    assert {row.result for row in harness.master.finals} == {b"1"}
    assert counters_are_back(harness)


async def test_a_job_that_waits_for_a_thread_is_not_timed_out(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    first, second, third = job("thread"), job("thread"), job("thread")
    harness.submit(bucket, [first, second, third])
    await until(lambda: len(ran) == 2)
    harness.clock.now += 20.0
    assert [each.entry.id for each in harness.bucket_worker.executor.running_before(harness.clock.now)] == [
        first.id,
        second.id,
    ]
    release.set()
    await harness.settled()
    assert outcome(harness, third).state == JobState.SUCCEEDED
    assert counters_are_back(harness)


async def test_a_thread_that_runs_too_long_is_given_up_and_replaced(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("thread"), job("thread"), job("quick")])
    await until(lambda: len(ran) == 2)
    harness.clock.now += 31.0
    harness.trust()
    await until(lambda: len(harness.master.attempts) == 2)
    assert {decode_error(row.error or b"").reason for row in harness.master.attempts} == {"timeout"}
    await until(lambda: harness.master.finals, "the third job on a replaced thread")
    release.set()
    await harness.settled()
    assert counters_are_back(harness)
    assert len(harness.master.attempts) == 2, "late results are thrown away"


async def ended_thread(harness: ProcessPoolHarness) -> tuple[OwnedBucket, ClaimedJob]:
    """A job whose thread has come to its end, while the loop has no result yet."""
    bucket = harness.bucket()
    entry = job("thread")
    harness.submit(bucket, [entry])
    await until(lambda: ran)
    live = harness.bucket_worker.job_table.get(entry.id)
    assert live is not None
    thread = harness.bucket_worker._dispatcher._dispatched[live].thread
    assert thread is not None
    release.set()
    wait_until(lambda: thread.over, 10, "the end of the thread")
    return bucket, live


async def test_a_thread_that_ended_just_before_its_timeout_counts(harness: ProcessPoolHarness) -> None:
    _, live = await ended_thread(harness)
    harness.bucket_worker.executor.stop_job(live, StopCause.TIMEOUT)
    await harness.settled()
    assert outcome(harness, live.entry).state == JobState.SUCCEEDED
    assert not harness.master.attempts


async def test_a_thread_that_ended_just_before_its_bucket_was_lost_records_nothing(harness: ProcessPoolHarness) -> None:
    bucket, _ = await ended_thread(harness)
    harness.rescue(bucket)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    await until(lambda: counters_are_back(harness))
    await turns()
    assert not harness.master.finals
    assert not harness.bucket_worker.outcome_writer.backlog


async def test_a_handlers_own_unavailable_is_its_failed_attempt(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    entry = job("unavailable")
    harness.submit(bucket, [entry])
    await harness.settled()
    assert outcome(harness, entry).state == JobState.FAILED


async def test_a_job_cancelled_while_it_waits_for_room_never_starts(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    entries = [job("thread"), job("thread"), job("thread")]
    harness.submit(bucket, entries)
    await until(lambda: len(ran) == 2)
    harness.bucket_worker.cancel([entries[2].id])
    await until(lambda: harness.master.finals)
    assert (harness.master.finals[0].id, harness.master.finals[0].attempt) == (entries[2].id, 0)
    release.set()
    await harness.settled()
    assert len(ran) == 2
    assert counters_are_back(harness)


async def test_a_paused_job_that_waits_for_a_thread_or_a_worker_process_goes_back(harness: ProcessPoolHarness) -> None:
    """What has begun goes on; what waits for a thread, for room or for a worker process that is not ready has not begun."""
    bucket = harness.bucket()
    harness.pool.ready.clear()
    running, waiting = [job("thread"), job("thread")], [job("thread"), job("process"), job("process"), job("process")]
    harness.submit(bucket, [*running, *waiting])
    await until(lambda: len(ran) == 2 and len(harness.pool.orders) == 2)
    pauses = tuple(
        Pause(kind=PauseKind.HANDLER, value=name, actor="ann", reason="", since_us=0) for name in ("thread", "process")
    )
    harness.bucket_worker.pauses.take(PausesInForce(1, pauses), harness.clock.now)
    harness.bucket_worker.apply_pauses()
    await until(lambda: all(_is_held(harness, entry) for entry in waiting))
    harness.pool.ready.set()
    release.set()
    await harness.settled()
    assert {row.id for row in harness.master.finals} == {entry.id for entry in running}
    assert not harness.pool.begun
    assert not harness.master.attempts, "no attempt was used"
    assert counters_are_back(harness)


def _is_held(harness: ProcessPoolHarness, entry: Entry) -> bool:
    row = harness.master.rows.get(entry.id)
    return row is not None and row.state == "HELD"


async def test_a_job_that_lies_with_the_threads_has_not_begun_and_can_be_asked_back(
    harness: ProcessPoolHarness,
) -> None:
    bucket = harness.bucket()
    running, lying = [job("thread"), job("thread")], [job("thread"), job("thread")]
    harness.submit(bucket, [*running, *lying])
    dispatcher = harness.bucket_worker._dispatcher
    await until(lambda: len(ran) == 2 and dispatcher._threads.waiting == 2)
    live = [harness.bucket_worker.job_table.get(entry.id) for entry in (*running, *lying)]
    assert [each is not None and dispatcher.started_at(each) is None for each in live] == [False, False, True, True]
    assert [each is not None and dispatcher.is_waiting(each) for each in live] == [False, False, True, True]
    assert [each.job.entry.id for each in dispatcher._in_threads.waiting] == [entry.id for entry in lying], (
        "no thread begins them before the loop turns again, and then in their order"
    )
    release.set()
    await harness.settled()
    assert len(ran) == 4
    assert counters_are_back(harness)


async def lying_with_the_threads(harness: ProcessPoolHarness, bucket: OwnedBucket) -> list[ClaimedJob]:
    """Two jobs behind two that run."""
    entries = [job("thread") for _ in range(4)]
    harness.submit(bucket, entries)
    dispatcher = harness.bucket_worker._dispatcher
    await until(lambda: len(ran) == 2 and dispatcher._threads.waiting == 2)
    live = [harness.bucket_worker.job_table.get(entry.id) for entry in entries[2:]]
    return [each for each in live if each is not None]


async def test_the_deadline_that_a_thread_sees_counts_from_its_start(harness: ProcessPoolHarness) -> None:
    harness.submit(harness.bucket(), [job("timed")])
    await harness.settled()
    assert harness.master.finals[0].result == b"[30.0,false]"


async def test_a_frozen_bucket_begins_no_job_that_lies_with_the_threads(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    await lying_with_the_threads(harness, bucket)
    harness.bucket_worker.freeze(bucket)
    assert harness.bucket_worker._dispatcher._threads.waiting == 0
    release.set()
    await until(lambda: len(harness.bucket_worker._dispatcher._dispatched) == 2)
    await turns()
    assert len(ran) == 2
    bucket.unfreeze()
    harness.bucket_worker.resume(bucket)
    await harness.settled()
    assert len(ran) == 4
    assert counters_are_back(harness)


async def test_a_pause_of_others_and_a_freeze_of_another_bucket_leave_jobs_with_the_threads(
    harness: ProcessPoolHarness,
) -> None:
    live = await lying_with_the_threads(harness, harness.bucket())
    dispatched = harness.bucket_worker._dispatcher._dispatched
    before = [dispatched[each].thread for each in live]
    pause = Pause(kind=PauseKind.HANDLER, value="quick", actor="ann", reason="", since_us=0)
    harness.bucket_worker.pauses.take(PausesInForce(1, (pause,)), harness.clock.now)
    harness.bucket_worker.apply_pauses()
    harness.bucket_worker.freeze(harness.bucket())
    assert [dispatched[each].thread for each in live] == before
    release.set()
    await harness.settled()


async def test_nothing_lies_before_a_job_whose_start_is_being_written(harness: ProcessPoolHarness) -> None:
    written = Gate()
    harness.master.script["persist"].append(written)
    harness.submit(harness.bucket(), [job("thread"), job("fenced"), *(job("thread") for _ in range(3))])
    await written.reached.wait()
    await turns()
    assert ran == ["thread"], "the second thread is for the one that is written"
    written.opened.set()
    await until(lambda: "fenced" in ran)
    release.set()
    await harness.settled()
    assert ran[:2] == ["thread", "fenced"]
    assert counters_are_back(harness)
    assert harness.bucket_worker._dispatcher._in_threads.on_way == 0


async def test_a_job_that_came_too_late_and_is_cancelled_does_not_wait_again(harness: ProcessPoolHarness) -> None:
    live, _ = await lying_with_the_threads(harness, harness.bucket())
    thread = harness.bucket_worker._dispatcher._dispatched[live].thread
    assert thread is not None
    harness.clock.now = harness.ownership.soft_until + 1.0
    release.set()
    wait_until(lambda: thread.over, 10, "the end of the thread")
    harness.bucket_worker.executor.stop_job(live, StopCause.CANCEL)
    assert live not in harness.bucket_worker._dispatcher._dispatched
    harness.trust()
    await harness.settled()
    assert harness.master.rows[live.entry.id].state == "CANCELLED"
    assert len(ran) == 3
    assert counters_are_back(harness)


class GivingPool(SlowPool):
    """A worker to which jobs are given ahead, and that the test controls."""

    grows = False

    def __init__(self) -> None:
        super().__init__()
        self.given: list[GivenJob] = []
        self.asked_back: list[GivenJob] = []
        self.stopped: list[GivenJob] = []

    def room(self) -> Any:
        return self

    def expected_seconds(self, handler: str) -> float:
        return 0.0

    def fits(self, *_: object) -> bool:
        return True

    def share_of(self, waiting: int) -> int:
        return waiting

    def give(self, worker: object, jobs: Sequence[GivenJob]) -> None:
        self.given += jobs

    def take_back(self, given: GivenJob) -> None:
        self.asked_back.append(given)

    def stop(self, given: GivenJob) -> None:
        self.stopped.append(given)

    def note_run(self, handler: str, result: AttemptResult) -> None:
        pass


async def test_a_pause_runs_no_job_again_that_has_ended_in_its_worker(harness: ProcessPoolHarness) -> None:
    """The agent does not know yet that a job has begun: it asks for its return, and disturbs nothing."""
    pool = GivingPool()
    harness.bucket_worker._dispatcher._pool = pool  # type: ignore[assignment]
    begun, waits, stopped = [job("process") for _ in range(3)]
    harness.submit(harness.bucket(), [begun, waits, stopped])
    await until(lambda: len(pool.given) == 3)
    done = AttemptResult(kind=ResultKind.OK, result=b"1")
    live = harness.bucket_worker.job_table.get(stopped.id)
    assert live is not None
    pool.given[2].on_started(0.0)
    harness.bucket_worker.executor.stop_job(live, StopCause.RELEASE)
    pool.given[2].on_ended(done)
    pause = Pause(kind=PauseKind.HANDLER, value="process", actor="ann", reason="", since_us=0)
    harness.bucket_worker.pauses.take(PausesInForce(1, (pause,)), harness.clock.now)
    harness.bucket_worker.apply_pauses()
    assert (pool.asked_back, pool.stopped) == (pool.given[:2], pool.given[2:])
    pool.given[0].on_started(0.0)
    pool.given[0].on_ended(done)
    pool.given[1].on_ended(None)
    await harness.settled()
    assert {row.id for row in harness.master.finals} == {begun.id, stopped.id}
    assert {row.state for row in harness.master.finals} == {JobState.SUCCEEDED}
    assert _is_held(harness, waits)
    assert counters_are_back(harness)


async def test_what_waited_for_room_starts_only_under_a_lease(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    harness.submit(bucket, [job("thread"), job("thread"), job("thread")])
    await until(lambda: len(ran) == 2)
    harness.clock.now = harness.ownership.soft_until + 1.0
    executor = harness.bucket_worker.executor
    for _ in range(2):
        release.set()
    await until(lambda: len(harness.master.finals) == 2 or executor.running == 1)
    await turns()
    assert len(ran) == 2
    harness.trust()
    await harness.settled()
    assert len(ran) == 3


async def test_worker_processes_get_as_many_jobs_as_there_are(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    entries = [job("process") for _ in range(5)]
    harness.submit(bucket, entries)
    await until(lambda: len(harness.pool.orders) == 2)
    await turns()
    assert len(harness.pool.orders) == 2
    harness.clock.now += 29.0
    for entry in entries[:2]:
        harness.pool.orders[entry.id][0].set_result(AttemptResult(kind=ResultKind.OK, result=b"1", ran_us=5))
    await until(lambda: len(harness.pool.orders) == 4)
    harness.clock.now += 2.0  # more than the time-out since the claim, less since they were started
    executor = harness.bucket_worker.executor
    executor._sweep()
    await turns()
    for entry in entries[2:]:
        await until(functools.partial(harness.pool.orders.__contains__, entry.id))
        harness.pool.orders[entry.id][0].set_result(AttemptResult(kind=ResultKind.OK, result=b"1", ran_us=5))
    await harness.settled()
    assert {row.state for row in harness.master.finals} == {JobState.SUCCEEDED}
    assert counters_are_back(harness)


async def test_the_start_of_a_worker_process_is_not_the_jobs_time(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    entry = job("process")
    harness.pool.ready.clear()
    harness.submit(bucket, [entry])
    await until(lambda: harness.pool.orders)
    harness.clock.now += 400.0
    harness.trust()
    harness.bucket_worker.executor._sweep()
    await turns()
    assert not harness.pool.orders[entry.id][0].cancelled()
    harness.pool.ready.set()
    await until(lambda: harness.pool.begun)
    harness.clock.now += 29.0
    harness.bucket_worker.executor._sweep()
    await turns()
    assert not harness.pool.orders[entry.id][0].cancelled()
    harness.clock.now += 2.0
    harness.bucket_worker.executor._sweep()
    await harness.settled()
    assert decode_error(outcome(harness, entry).error or b"").reason == "timeout"


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (AttemptResult(kind=ResultKind.OK, result=b"1"), "SUCCEEDED"),
        (
            AttemptResult(kind=ResultKind.CRASHED, error=ErrorInfo(type="WorkerDied", message="x", reason="crashed")),
            "FAILED",
        ),
        (AttemptResult(kind=ResultKind.CANCEL, error=ErrorInfo(type="Cancel", message="x")), "CANCELLED"),
        (AttemptResult(kind=ResultKind.NOT_STARTED), "HELD"),
        (OSError("no more processes"), "HELD"),
        (ValueError("a defect of the pool"), "FAILED"),
    ],
)
async def test_every_end_of_a_worker_has_one_outcome(harness: ProcessPoolHarness, result: Any, state: str) -> None:
    bucket = harness.bucket()
    entry = job("process")
    harness.submit(bucket, [entry])
    await until(lambda: harness.pool.orders)
    future = harness.pool.orders[entry.id][0]
    future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)
    await harness.settled()
    assert harness.master.rows[entry.id].state == state
    assert counters_are_back(harness)
    if state == "HELD":
        assert not harness.master.attempts
        assert harness.master.rows[entry.id].due_us > harness.clock.wall_us(), "it must not bounce straight back"


async def test_a_job_rescued_once_runs_like_any_other(harness: ProcessPoolHarness) -> None:
    entry = job("note", rescues=1, token=3)
    harness.submit(harness.bucket(), [entry])
    await harness.settled()
    assert harness.pool.alone == []
    assert len(ran) == 1
    assert outcome(harness, entry).rescues == 1


async def test_a_job_that_one_more_rescue_would_end_runs_alone(harness: ProcessPoolHarness) -> None:
    bucket = harness.bucket()
    entry = job("note", rescues=2, token=3)
    harness.submit(bucket, [entry])
    await until(lambda: harness.pool.alone == [entry.id])
    harness.pool.orders[entry.id][0].set_result(AttemptResult(kind=ResultKind.OK))
    await harness.settled()
    assert ran == []
    assert outcome(harness, entry).rescues == 2


async def test_a_superseded_copy_that_is_still_ending_does_not_take_the_next_ones_place(
    harness: ProcessPoolHarness,
) -> None:
    one, two = harness.bucket(), harness.bucket()
    entry = job("process")
    harness.submit(one, [entry])
    await until(lambda: harness.pool.orders)
    harness.submit(two, [entry])
    await until(lambda: harness.bucket_worker.job_table.duplicates)
    harness.pool.stopping.clear()
    harness.rescue(one)
    harness.bucket_worker.forget(one.fence.bucket_id, "on request of the test")
    await until(lambda: len(harness.pool.orders[entry.id]) == 2)
    harness.pool.stopping.set()
    await turns()
    harness.pool.orders[entry.id][1].set_result(AttemptResult(kind=ResultKind.OK, result=b"2"))
    await harness.settled()
    assert [row.result for row in harness.master.finals] == [b"2"]
    assert counters_are_back(harness)


@pytest.mark.parametrize("cause", [StopCause.RELEASE, StopCause.CANCEL, StopCause.TIMEOUT])
async def test_a_stopped_worker_gives_the_outcome_of_its_cause(harness: ProcessPoolHarness, cause: StopCause) -> None:
    bucket = harness.bucket()
    entry = job("process")
    harness.submit(bucket, [entry])
    await until(lambda: harness.pool.orders)
    live = harness.bucket_worker.job_table.get(entry.id)
    assert live is not None
    harness.bucket_worker.executor.stop_job(live, cause)
    await harness.settled()
    expected = {StopCause.RELEASE: "HELD", StopCause.CANCEL: "CANCELLED", StopCause.TIMEOUT: "FAILED"}
    assert harness.master.rows[entry.id].state == expected[cause]
    assert counters_are_back(harness)


async def test_stopped_before_the_first_step_of_its_task_it_keeps_no_place(harness: ProcessPoolHarness) -> None:
    bucket, entries = harness.bucket(), [job("process") for _ in range(3)]
    harness.submit(bucket, entries)
    dispatcher = harness.bucket_worker._dispatcher
    await until(lambda: dispatcher._in_processes.waiting and len(harness.pool.orders) == 2)
    live = dispatcher._in_processes.waiting[0].job
    dispatcher._in_processes.size += 1
    dispatcher._admit(dispatcher._in_processes)
    harness.bucket_worker.executor.stop_job(live, StopCause.RELEASE)
    for entry in entries:
        if entry.id != live.entry.id:
            harness.pool.orders[entry.id][0].set_result(AttemptResult(kind=ResultKind.OK))
    await harness.settled()
    assert live.entry.id not in harness.pool.orders
    assert harness.master.rows[live.entry.id].state == "HELD"
    assert counters_are_back(harness)
    assert dispatcher._in_processes.admitted == 0


surrounded = Handlers()


@surrounded.around
async def around(ctx: JobContext, run: Callable[[], Any]) -> object:
    try:
        return await run()
    except Unavailable:
        stops[0]()
        with contextlib.suppress(asyncio.CancelledError):  # the stop
            await asyncio.sleep(0)
        raise


stops: list[Callable[[], None]] = []


@surrounded.job(name="surrounded", mode="thread")
def surrounded_thread() -> None:
    raise AssertionError("no thread can be started")


@pytest.mark.parametrize(
    ("cause", "state"), [(StopCause.RELEASE, "HELD"), (StopCause.CANCEL, "CANCELLED"), (None, "HELD")]
)
async def test_a_surrounded_thread_that_cannot_start_has_an_outcome_also_when_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, cause: StopCause | None, state: str
) -> None:
    async with WorkerHarness(surrounded, AgentSettings(threads=1)) as harness:

        def refuse(*_: object) -> None:
            raise Unavailable("cannot start a thread for a job")

        monkeypatch.setattr(harness.bucket_worker._dispatcher._threads, "submit", refuse)
        entry = job("surrounded")

        def stop() -> None:
            live = harness.bucket_worker.job_table.get(entry.id)
            assert live is not None
            if cause is not None:
                harness.bucket_worker.executor.stop_job(live, cause)

        stops[:] = [stop]
        harness.submit(harness.bucket(), [entry])
        await harness.settled()
        assert harness.master.rows[entry.id].state == state
        assert harness.bucket_worker.executor.running == 0
        assert not harness.bucket_worker._dispatcher._dispatched


def test_a_stop_while_a_thread_makes_the_context_of_its_job_is_kept() -> None:
    """The loop sets it between two steps of the thread: after the look at the cause, before the end of the look."""
    context: Any = SimpleNamespace(cancelled=True)
    live: Any = None
    dispatched = DispatchedJob(live, lambda job: None, ConcurrencyLimit(1), lambda dispatched: context)
    assert dispatched.current_context().cancelled


async def test_a_defect_in_the_outcome_of_a_thread_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise CodeError("an outcome that cannot be")

    async def live() -> None:
        async with ProcessPoolHarness() as harness:
            monkeypatch.setattr(harness.bucket_worker.outcome_builder, "returned", broken)
            harness.submit(harness.bucket(), [job("quick")])
            run = harness._run
            assert run is not None
            await until(run.done, "the end of the process")

    with pytest.raises(BaseExceptionGroup, match="unhandled errors") as ended:
        await live()
    assert ended.group_contains(CodeError)


async def test_a_defect_beside_the_handler_ends_the_process_and_keeps_no_place_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a slot: the lease makes leaving safe, and a job without a watching task would hold up the exit."""

    async def broken(*_: object) -> bool:
        raise CodeError("an answer that leaves out a row")

    async def live() -> None:
        async with ProcessPoolHarness() as harness:
            monkeypatch.setattr(harness.bucket_worker._dispatcher, "_authorise", broken)
            harness.submit(harness.bucket(), [job("quick", rescues=1)])
            run = harness._run
            assert run is not None
            await until(run.done, "the end of the process")

    with pytest.raises(BaseExceptionGroup, match="unhandled errors") as ended:
        await live()
    assert ended.group_contains(CodeError)
