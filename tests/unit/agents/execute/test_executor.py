"""The executor: handlers that broke cheaper designs, deadlines, cancellation, order, turns of the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import anyio
import pytest

from jobmaster.codec import decode_error
from jobmaster.handlers import Handlers, JobContext, Retry
from jobmaster.model.job import FinalRow, HoldRow, JobState
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings
from jobmaster_agents.outcomes.outcome_builder import StopCause
from jobmaster_agents.state.job_table import ClaimedJob
from tests.support.bucket_worker_fixture import turns
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until
from tests.unit.agents.execute.executor_fixture import CLOCK, ExecutorHarness

handlers = Handlers()
seen: list[object] = []


@pytest.fixture
async def harness() -> AsyncIterator[ExecutorHarness]:
    seen.clear()
    made = ExecutorHarness(handlers, AgentSettings(slots=20, max_running=50))
    yield made
    await made.executor.aclose()


@handlers.job(name="echo")
async def echo(value: int) -> int:
    return value


@handlers.job(name="timeout_first")
async def timeout_first() -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.sleep(0)
        return "inside"


@handlers.job(name="timeout_hits")
async def timeout_hits() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        return "timed out inside"
    return "never"


@handlers.job(name="group_first")
async def group_first() -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(echo(n)) for n in range(3)]
    return [task.result() for task in tasks]


@handlers.job(name="group_fails")
async def group_fails() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        await asyncio.sleep(0.01)


@handlers.job(name="anyio_first")
async def anyio_first() -> str:
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    return "moved on"


@handlers.job(name="fails")
async def fails() -> None:
    raise RuntimeError("on purpose")


@handlers.job(name="exits")
async def exits() -> None:
    raise SystemExit(3)


@handlers.job(name="cancels_itself")
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@handlers.job(name="hangs", timeout=0.1, max_attempts=1)
async def hangs() -> None:
    await asyncio.Event().wait()


@handlers.job(name="stubborn", timeout=0.1, max_attempts=1)
async def stubborn() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "came to its end"


ears = asyncio.Event()


@handlers.job(name="deaf")
async def deaf() -> None:
    while not ears.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await ears.wait()


@handlers.job(name="again")
async def again(ctx: JobContext) -> None:
    raise Retry(after=7)


@handlers.job(name="not_json")
async def not_json() -> object:
    return object()


class Hostile(dict[str, float]):
    """A result whose own code raises."""

    def items(self) -> object:  # type: ignore[override]
        raise KeyError("no")


@handlers.job(name="hostile_result")
async def hostile_result() -> object:
    return [None, Hostile(a=1.0)]


@handlers.job(name="asks")
async def asks(after: str) -> None:
    raise Retry(after=float(after) if after != "text" else "soon")  # type: ignore[arg-type]


@handlers.job(name="note")
async def note(value: int) -> None:
    seen.append(value)


@handlers.job(name="fenced", start="fenced")
async def fenced() -> None:
    seen.append("ran")


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("timeout_first", b'"inside"'),
        ("timeout_hits", b'"timed out inside"'),
        ("group_first", b"[0,1,2]"),
        ("anyio_first", b'"moved on"'),
        ("stubborn", b'"came to its end"'),
    ],
)
async def test_scopes_as_first_await_work_and_do_not_hit_the_next_job(
    harness: ExecutorHarness, name: str, result: bytes
) -> None:
    bucket = harness.bucket()
    harness.put(bucket, [(name, b"{}"), ("echo", b'{"value":1}'), (name, b"{}"), ("echo", b'{"value":2}')])
    rows = await harness.sink.wait_rows(4)
    assert sorted(row.result or b"" for row in rows if isinstance(row, FinalRow)) == sorted(
        [result, result, b"1", b"2"]
    )


@pytest.mark.parametrize("name", ["fails", "exits", "cancels_itself", "not_json"])
async def test_a_failing_handler_costs_its_own_attempt_only(harness: ExecutorHarness, name: str) -> None:
    bucket = harness.bucket()
    harness.put(bucket, [(name, b"{}"), ("echo", b'{"value":1}')])
    rows = await harness.sink.wait_rows(2)
    held = next(row for row in rows if isinstance(row, HoldRow))
    done = next(row for row in rows if isinstance(row, FinalRow))
    assert (held.attempt, done.state, done.result) == (1, JobState.SUCCEEDED, b"1")
    assert held.error is not None
    assert harness.sink.heres == [True]


async def test_arguments_that_do_not_fit_end_the_job_at_once(harness: ExecutorHarness) -> None:
    harness.put(harness.bucket(), [("echo", b'{"value":"x"}')])
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, FinalRow)
    assert row.state == JobState.FAILED
    assert decode_error(row.error or b"").reason == "arguments"


async def test_a_hanging_handler_is_stopped_at_its_timeout(harness: ExecutorHarness) -> None:
    harness.put(harness.bucket(), [("hangs", b"{}")])
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, FinalRow)
    assert decode_error(row.error or b"").reason == "timeout"
    assert 0.1e6 <= row.ran_us < 3e6


async def test_retry_asks_for_its_own_delay(harness: ExecutorHarness) -> None:
    before = CLOCK.wall_us()
    harness.put(harness.bucket(), [("again", b"{}")])
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, HoldRow)
    assert 6.9e6 < row.due_us - before < 8e6


@pytest.mark.parametrize(("after", "seconds"), [("0", 0), ("-3", 0), ("nan", None), ("inf", None), ("text", None)])
async def test_whatever_a_handler_asks_for_its_slot_lives_on(
    harness: ExecutorHarness, after: str, seconds: int | None
) -> None:
    harness.put(harness.bucket(), [("asks", b'{"after":"%s"}' % after.encode()), ("echo", b'{"value":1}')])
    rows = await harness.sink.wait_rows(2)
    held = next(row for row in rows if isinstance(row, HoldRow))
    delay = (held.due_us - CLOCK.wall_us()) / 1e6
    assert (delay < 0.5) if seconds == 0 else (0.5 < delay < 60), "the usual back-off when it makes no sense"


async def test_a_result_whose_own_code_raises_is_a_failed_attempt(harness: ExecutorHarness) -> None:
    harness.put(harness.bucket(), [("hostile_result", b"{}"), ("echo", b'{"value":1}')])
    rows = await harness.sink.wait_rows(2)
    held = next(row for row in rows if isinstance(row, HoldRow))
    assert decode_error(held.error or b"").reason == "result"


async def test_a_defect_of_our_own_in_a_slot_is_not_silent(harness: ExecutorHarness) -> None:
    def broken(job: ClaimedJob, error: BaseException, started: float, ended: float) -> None:
        raise ZeroDivisionError

    harness.outcome_builder.raised = broken  # type: ignore[method-assign]
    watch = asyncio.create_task(harness.executor.run())
    harness.put(harness.bucket(), [("fails", b"{}")])
    with pytest.raises(ZeroDivisionError):
        await watch


async def test_a_handler_that_ignores_the_end_of_the_process_does_not_hold_it_up() -> None:
    harness = ExecutorHarness(handlers, AgentSettings())
    harness.put(harness.bucket(), [("deaf", b"{}")])
    await until(lambda: harness.executor.running)
    task = next(iter(harness.executor._slots)).task
    async with asyncio.timeout(PATIENCE_SECONDS):
        await harness.executor.aclose()
    ears.set()
    assert task is not None
    await asyncio.wait((task,))
    ears.clear()


async def test_a_job_without_handler_goes_back_without_an_attempt(harness: ExecutorHarness) -> None:
    harness.put(harness.bucket(), [("nobody", b"{}")])
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, HoldRow)
    assert (row.attempt, row.error) == (0, None)


async def test_a_cancellation_of_one_job_does_not_count_against_the_next_in_its_slot() -> None:
    harness = ExecutorHarness(handlers, AgentSettings(max_running=1))
    harness.put(
        harness.bucket(),
        [("hangs", b"{}"), ("cancels_itself", b"{}"), ("group_fails", b"{}"), ("echo", b'{"value":1}')],
    )
    rows = await harness.sink.wait_rows(4)
    errors = [decode_error(row.error).type for row in rows if row.error is not None]
    assert errors == ["Timeout", "asyncio.exceptions.CancelledError", "ExceptionGroup"]
    await harness.executor.aclose()


async def test_jobs_of_several_buckets_that_come_in_one_turn_all_get_a_slot(harness: ExecutorHarness) -> None:
    for priority in (1, 3, 5):
        harness.put(harness.bucket(priority), [("hangs", b"{}")])
    await until(lambda: harness.executor.running == 3)


async def test_cancel_and_release_of_running_jobs(harness: ExecutorHarness) -> None:
    bucket = harness.bucket()
    one, two, three = harness.put(bucket, [("hangs", b"{}")] * 3)
    await until(lambda: harness.executor.running == 3)
    harness.executor.stop_job(one, StopCause.CANCEL)
    harness.executor.stop_job(two, StopCause.RELEASE)
    harness.executor.stop_job(three, StopCause.SUPERSEDED)
    rows = await harness.sink.wait_rows(2)
    final = next(row for row in rows if isinstance(row, FinalRow))
    held = next(row for row in rows if isinstance(row, HoldRow))
    assert (final.id, final.state) == (one.entry.id, JobState.CANCELLED)
    assert (held.id, held.attempt, held.error) == (two.entry.id, 0, None)
    await until(lambda: not harness.executor.running)
    assert len(harness.sink.rows) == 2, "a superseded job records nothing"


async def test_priority_goes_first_and_age_lifts_one_job_at_a_time(harness: ExecutorHarness) -> None:
    low, high = harness.bucket(2), harness.bucket(4)
    harness.executor._settings = AgentSettings(max_running=1)
    harness.put(low, [("note", b'{"value":2}')] * 3)
    harness.put(high, [("note", b'{"value":4}')] * 3)
    harness.put(harness.bucket(1), [("note", b'{"value":1}')] * 3, age_seconds=900.0 * 4)
    await harness.sink.wait_rows(9)
    assert seen == [1, 4, 1, 4, 1, 4, 2, 2, 2]


async def test_nothing_starts_past_half_the_lease(harness: ExecutorHarness) -> None:
    harness.ownership.soft_until = 0.0
    harness.put(harness.bucket(), [("note", b'{"value":1}')])
    for _ in range(50):
        await asyncio.sleep(0)
    assert seen == []
    harness.ownership.trust(term(CLOCK.boottime(), 60.0))
    await harness.sink.wait_rows(1)
    assert seen == [1]


async def test_a_slot_that_waited_inside_a_job_checks_the_lease_before_the_next_one() -> None:
    """A slot takes one job after another, and one of them waits while the lease runs out and others have begun new turns.
    (A simulated agent that had stood still started what it held, after its death certificate.)"""
    gate, local = asyncio.Event(), Handlers()
    seen.clear()

    @local.job(name="waits")
    async def waits() -> None:
        await gate.wait()

    @local.job(name="starts")
    async def starts() -> None:
        seen.append("started")

    harness = ExecutorHarness(local, AgentSettings(slots=1))
    harness.put(harness.bucket(), [("waits", b"{}"), ("starts", b"{}")])
    for _ in range(20):
        await asyncio.sleep(0)
    assert harness.executor.running == 1
    await asyncio.sleep(0.02)  # longer than the turn in which it began
    harness.ownership.soft_until = 0.0
    harness.executor._turn_ends = CLOCK.boottime() + 60.0
    gate.set()
    await harness.sink.wait_rows(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen == []
    harness.ownership.trust(term(CLOCK.boottime(), 60.0))
    await harness.sink.wait_rows(2)
    assert seen == ["started"]
    await harness.executor.aclose()


@pytest.mark.parametrize("allow", [True, False])
async def test_a_fenced_start_needs_an_accepted_write(allow: bool) -> None:
    seen.clear()
    harness = ExecutorHarness(handlers, AgentSettings(), allow=allow)
    harness.put(harness.bucket(), [("fenced", b"{}"), ("echo", b'{"value":1}')])
    await harness.sink.wait_rows(2 if allow else 1)
    assert seen == (["ran"] if allow else [])
    assert harness.executor.running == 0
    assert harness.executor.finished == (2 if allow else 1), "what never began did not come to an end"
    await harness.executor.aclose()


async def test_jobs_that_never_suspend_leave_the_loop_its_turns(harness: ExecutorHarness) -> None:
    bucket = harness.bucket()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(turn())
    harness.put(bucket, [("note", b'{"value":1}')] * 20_000)
    await harness.sink.wait_rows(20_000)
    ticking.cancel()
    assert turns > 3


async def test_suspending_jobs_spread_over_all_slots(harness: ExecutorHarness) -> None:
    harness.put(harness.bucket(), [("hangs", b"{}")] * 40)
    await until(lambda: harness.executor.running == 20)
    await turns()
    assert harness.executor.running == 20, "slots is the limit of one bucket"
