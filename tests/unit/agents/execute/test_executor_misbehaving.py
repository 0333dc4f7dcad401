"""Handlers that misuse their own task: each ends with an outcome and harms no other job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar, copy_context

import pytest
import uvloop

from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.job import Entry, FinalRow, HoldRow, JobState
from jobmaster.settings.model import AgentSettings
from jobmaster_agents import call_retry
from jobmaster_agents.agent_main import run_main_coroutine
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.outcomes.outcome_builder import StopCause
from tests.support.bucket_worker_fixture import WorkerHarness
from tests.support.fakes.fake_transactions import FakeTransactions
from tests.support.waiting import until
from tests.unit.agents.execute.executor_fixture import ExecutorHarness

handlers = Handlers()
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
seen: list[str] = []
swallowed: list[str] = []
ears = asyncio.Event()


def own_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


@handlers.job(name="cancels", max_attempts=1)
async def cancels() -> None:
    own_task().cancel()
    await asyncio.sleep(0)


@handlers.job(name="swallows", max_attempts=1)
async def swallows() -> str:
    own_task().cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return "went on"


@handlers.job(name="cancels_and_returns", max_attempts=1)
async def cancels_and_returns() -> str:
    own_task().cancel()
    return "returned"


@handlers.job(name="cancelled_by_a_friend", max_attempts=1)
async def cancelled_by_a_friend() -> None:
    asyncio.get_running_loop().call_soon(own_task().cancel)
    await asyncio.Event().wait()


@handlers.job(name="cancelled_later", max_attempts=1)
async def cancelled_later() -> str:
    asyncio.get_running_loop().call_later(0.05, own_task().cancel)
    return "returned"


@handlers.job(name="closes", max_attempts=1)
async def closes() -> None:
    raise GeneratorExit


@handlers.job(name="closes_later", max_attempts=1)
async def closes_later() -> None:
    await asyncio.sleep(0)
    raise GeneratorExit


@handlers.job(name="exits", max_attempts=1)
async def exits() -> None:
    await asyncio.sleep(0)
    raise SystemExit(0)


@handlers.job(name="interrupts", max_attempts=1)
async def interrupts() -> None:
    raise KeyboardInterrupt


ENDS = {
    "cancels": "FAILED",
    "swallows": "SUCCEEDED",
    "cancels_and_returns": "SUCCEEDED",
    "cancelled_by_a_friend": "FAILED",
    "cancelled_later": "SUCCEEDED",
    "closes": "FAILED",
    "closes_later": "FAILED",
    "exits": "FAILED",
    "interrupts": "FAILED",
}

BODIES = (cancels, swallows, cancels_and_returns, closes, closes_later, exits)
transactional = Handlers()
for body in BODIES:
    transactional.job(name=f"{body.__name__}_transactional", max_attempts=1, transactional=True)(body)


@handlers.job(name="awaits_cancelled", max_attempts=1)
async def awaits_cancelled() -> None:
    """An ordinary failure: its task was not cancelled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@handlers.job(name="innocent", max_attempts=1)
async def innocent() -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return tenant.get()


@handlers.job(name="deaf", timeout=5, max_attempts=1)
async def deaf() -> str:
    seen.append("deaf")
    while not ears.is_set():
        try:
            await ears.wait()
        except asyncio.CancelledError:
            swallowed.append("deaf")
    return "too late"


@handlers.job(name="deaf_transactional", timeout=5, max_attempts=1, transactional=True)
async def deaf_transactional(ctx: JobContext) -> str:
    async with ctx.transaction() as connection:
        connection.log.append("wrote")
        return str(await deaf())


@handlers.job(name="speaks_for")
async def speaks_for(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    await asyncio.sleep(0)
    return before


@handlers.job(name="speaks_and_takes_back")
async def speaks_and_takes_back() -> str:
    token = tenant.set("somebody")
    tenant.reset(token)
    return tenant.get()


@handlers.job(name="speaks_and_fails", max_attempts=1)
async def speaks_and_fails(name: str) -> None:
    tenant.set(name)
    raise RuntimeError("on purpose")


@handlers.job(name="speaks_transactional", transactional=True)
async def speaks_transactional(name: str) -> str:
    return str(await speaks_for(name))


class Incomparable:
    """A value whose comparison raises, as that of arrays does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


grid: ContextVar[Incomparable | None] = ContextVar("grid")


@handlers.job(name="sets_grid")
async def sets_grid() -> str:
    grid.set(Incomparable())
    return tenant.get()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    seen.clear()
    ears.clear()


@pytest.fixture
async def make() -> AsyncIterator[Callable[[int], ExecutorHarness]]:
    made: list[ExecutorHarness] = []

    def harness(max_running: int) -> ExecutorHarness:
        made.append(ExecutorHarness(handlers, AgentSettings(slots=20, max_running=max_running)))
        return made[-1]

    yield harness
    for one in made:
        await one.executor.aclose()


Make = Callable[[int], ExecutorHarness]


# ---------------------------------------------------------------- the own task


@pytest.mark.parametrize("max_running", [1, 5])
@pytest.mark.parametrize("name", ENDS)
async def test_it_ends_and_the_next_jobs_of_its_slot_end_as_ever(make: Make, name: str, max_running: int) -> None:
    harness = make(max_running)
    broken = asyncio.ensure_future(harness.executor.run())
    jobs = harness.put(
        harness.bucket(), [(name, b"{}"), ("innocent", b"{}"), ("awaits_cancelled", b"{}"), ("innocent", b"{}")] * 3
    )
    rows = {row.id: row for row in await harness.sink.wait_rows(len(jobs))}
    states = {job.entry.id: row.state for job in jobs if isinstance(row := rows[job.entry.id], FinalRow)}
    expected = {name: ENDS[name], "awaits_cancelled": "FAILED", "innocent": "SUCCEEDED"}
    assert [states[job.entry.id] for job in jobs] == [expected[job.entry.handler] for job in jobs]
    await until(lambda: not harness.executor.running)
    assert not broken.done()
    broken.cancel()


async def test_a_cancellation_that_comes_when_the_slot_waits_costs_no_slot(make: Make) -> None:
    harness = make(1)
    bucket = harness.bucket()
    harness.put(bucket, [("cancelled_later", b"{}")])
    await harness.sink.wait_rows(1)
    await asyncio.sleep(0.2)  # the cancellation comes to a slot that waits for work
    harness.put(bucket, [("innocent", b"{}")])
    assert len(await harness.sink.wait_rows(2)) == 2


async def test_the_end_of_the_process_is_still_no_outcome(make: Make) -> None:
    harness = make(5)
    harness.put(harness.bucket(), [("deaf", b"{}"), ("cancelled_by_a_friend", b"{}")])
    await until(lambda: seen)
    ears.set()
    await harness.executor.aclose()
    assert [row.state for row in harness.sink.rows if isinstance(row, FinalRow)] in ([], ["SUCCEEDED"])


# ---------------------------------------------------------------- handlers in tasks of their own, and the agent around


def everything() -> Handlers:
    both = Handlers()
    both.merge(handlers)
    both.merge(transactional)
    return both


class LoopTransactionHarness(WorkerHarness):
    """With transactions that are kept on paper."""

    def __init__(self) -> None:
        super().__init__(everything(), AgentSettings(slots=4))
        self.source = FakeTransactions(self)
        self.bucket_worker._dispatcher._transactional._source = self.source

    async def __aenter__(self) -> LoopTransactionHarness:
        await super().__aenter__()
        return self


@pytest.fixture
async def harness() -> AsyncIterator[LoopTransactionHarness]:
    async with LoopTransactionHarness() as made:
        yield made
        ears.set()


def put(harness: WorkerHarness, *names: str) -> list[Entry]:
    owned = next(iter(harness.ownership.buckets.values()), None) or harness.bucket()
    entries = [Entry(new_id(), 1, name, b"{}") for name in names]
    harness.submit(owned, entries)
    return entries


def state(harness: WorkerHarness, entry: Entry) -> str:
    return harness.master.rows[entry.id].state


@pytest.mark.parametrize("name", [name for name in ENDS if transactional.get(f"{name}_transactional")])
async def test_in_a_task_of_its_own_it_is_the_same(harness: LoopTransactionHarness, name: str) -> None:
    entries = put(harness, *[f"{name}_transactional", "innocent"] * 3)
    await harness.settled()
    assert [state(harness, entry) for entry in entries] == [ENDS[name], "SUCCEEDED"] * 3
    assert harness.bucket_worker._dispatcher._in_tasks.admitted == 0


@pytest.mark.parametrize("suffix", ["", "_transactional"])
async def test_afterwards_the_agent_leaves_in_order(harness: LoopTransactionHarness, suffix: str) -> None:
    names = [name for name in ENDS if (handlers.get(name + suffix) or transactional.get(name + suffix))]
    put(harness, *[name + suffix for name in names])
    await harness.settled()
    bucket_ids = list(harness.ownership.buckets)
    assert await harness.bucket_worker.complete(bucket_ids, 5.0, "on request of the test") == []


# ---------------------------------------------------------------- handlers that do not stop


@pytest.mark.parametrize("name", ["deaf", "deaf_transactional"])
async def test_one_that_swallows_every_cancellation_is_given_up(
    harness: LoopTransactionHarness, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobmaster")
    (entry,) = put(harness, name)
    await until(lambda: seen)
    harness.clock.now += 6.0
    harness.trust()
    await until(lambda: _asked(harness))
    harness.clock.now += 11.0
    harness.trust()
    await harness.settled()
    assert state(harness, entry) == "FAILED"
    (row,) = harness.master.finals
    assert decode_error(row.error or b"").reason == "timeout"
    assert harness.bucket_worker._telemetry.value("handlers_stuck") == 1
    assert any(record.message == "handler_given_up" for record in caplog.records)
    (other,) = put(harness, "innocent")
    await harness.settled()
    assert state(harness, other) == "SUCCEEDED"
    assert harness.bucket_worker.executor.running == 0
    assert await harness.bucket_worker.complete(list(harness.ownership.buckets), 5.0, "on request of the test") == []
    before = len(swallowed)
    harness.clock.now += 3.0
    harness.trust()
    await until(lambda: len(swallowed) > before, "the request to stop is repeated, though nothing else runs")
    ears.set()
    await until(lambda: not harness.bucket_worker._telemetry.value("handlers_stuck"))
    assert len(harness.master.finals) == 2, "a late result is thrown away"
    assert harness.source.effects == []


def _asked(harness: WorkerHarness) -> bool:
    executor, dispatcher = harness.bucket_worker.executor, harness.bucket_worker._dispatcher
    return any(slot.cause is StopCause.TIMEOUT for slot in executor._slots) or any(
        dispatched.cause is StopCause.TIMEOUT for dispatched in dispatcher._dispatched.values()
    )


async def test_past_the_grace_the_agent_leaves_without_it(harness: LoopTransactionHarness) -> None:
    (entry,) = put(harness, "deaf")
    await until(lambda: seen)
    leaving = asyncio.ensure_future(
        harness.bucket_worker.complete(list(harness.ownership.buckets), 0.0, "on request of the test")
    )
    await until(lambda: any(slot.cause is StopCause.RELEASE for slot in harness.bucket_worker.executor._slots))
    harness.clock.now += 4.5
    harness.trust()
    assert await leaving == []
    assert state(harness, entry) == "HELD"


async def test_with_as_many_stuck_as_may_run_the_process_is_to_be_replaced() -> None:
    async with WorkerHarness(handlers, AgentSettings(slots=2, max_running=2)) as harness:
        put(harness, "deaf", "deaf")
        await until(lambda: len(seen) == 2)
        harness.clock.now += 6.0
        harness.trust()
        await until(lambda: _asked(harness))
        assert not harness.bucket_worker.threads_exhausted.is_set()
        harness.clock.now += 11.0
        harness.trust()
        await harness.settled()
        assert harness.bucket_worker.threads_exhausted.is_set()
        ears.set()


# ---------------------------------------------------------------- context variables


async def test_no_job_finds_the_context_variables_of_another(make: Make) -> None:
    harness = make(2)
    speakers = [("speaks_for", b'{"name":"customer-%d"}' % number) for number in range(20)]
    failing = [("speaks_and_fails", b'{"name":"customer-x"}')] * 3
    calls = [*speakers, *failing, ("sets_grid", b"{}"), *[("innocent", b"{}")] * 20, ("speaks_and_takes_back", b"{}")]
    token = grid.set(None)
    harness.executor._context = copy_context()
    harness.put(harness.bucket(), [call for pair in zip(calls, reversed(calls), strict=True) for call in pair])
    rows = await harness.sink.wait_rows(2 * len(calls))
    grid.reset(token)
    results = {row.result for row in rows if isinstance(row, FinalRow) and row.state == JobState.SUCCEEDED}
    assert results == {b'"nobody"'}
    assert not [row for row in rows if isinstance(row, HoldRow)]


async def test_no_attended_job_finds_them_either(harness: LoopTransactionHarness) -> None:
    owned = harness.bucket()
    harness.bucket_worker._dispatcher._in_tasks.size = 1  # each is let in by the one before it
    entries = [Entry(new_id(), 1, "speaks_transactional", b'{"name":"customer-%d"}' % n) for n in range(10)]
    entries += [Entry(new_id(), 1, "speaks_for", b'{"name":"customer-%d"}' % n) for n in range(10)]
    harness.submit(owned, entries)
    await harness.settled()
    assert {row.result for row in harness.master.finals} == {b'"nobody"'}
    assert len(harness.master.finals) == 20


# ---------------------------------------------------------------- the loop


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_an_exit_out_of_a_handlers_own_task_does_not_end_the_agent(
    factory: Callable[[], asyncio.AbstractEventLoop], error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Handlers()

    @mine.job(name="starts_an_exit", max_attempts=1)
    async def starts_an_exit() -> None:
        async def leaves() -> None:
            raise error

        await asyncio.gather(asyncio.create_task(leaves()))

    @mine.job(name="waits")
    async def waits() -> str:
        await asyncio.sleep(0.01)
        return "went on"

    async def main() -> int:
        harness = ExecutorHarness(mine, AgentSettings())
        harness.put(harness.bucket(), [("waits", b"{}"), ("starts_an_exit", b"{}"), ("waits", b"{}")])
        rows = await harness.sink.wait_rows(3)
        await harness.executor.aclose()
        return sum(isinstance(row, FinalRow) and row.state == JobState.SUCCEEDED for row in rows)

    loop = factory()
    assert run_main_coroutine(loop, main(), EventLog()) == 2
    assert [record.message for record in caplog.records if record.name == "jobmaster"] == ["exit_refused"]
    loop.close()
