"""What a handler lives in while an agent runs it: resources, middleware, dependencies, the current job, and log lines."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
from uncalled_for import Depends

from jobmaster import Handlers, JobContext, current_job
from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.handlers.current import LoopExecutor, task_factory
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.model.job import Entry, FinalRow, JobState
from jobmaster.settings.model import AgentSettings, ClusterSettings, Observability
from jobmaster_agents.event_log import LOGGER_NAME, configure
from jobmaster_agents.execute.process_pool.worker_output import LINES_PER_SECOND
from tests.support.bucket_worker_fixture import WorkerHarness, turns
from tests.support.fakes.fake_transactions import FakeTransactions
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import until

steps: list[str] = []
release = threading.Event()
began = threading.Event()
request_id: ContextVar[str] = ContextVar("request_id", default="-")
log = logging.getLogger("shop.orders")


class Resources(msgspec.Struct):
    names: list[str]


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:
    request_id.set("of the lifespan")
    yield Resources(["pool"])


handlers = Handlers(lifespan=lifespan)
surrounded = Handlers()


def described(context: JobContext[Resources] | None) -> list[Any]:
    now = current_job()
    assert now is not None
    assert context is None or now is context
    assert now is current_job()
    log.info("at work")
    return [now.handler, now.job_id_bytes.hex(), now.attempt, now.resources.names, request_id.get(), now.max_attempts]


@handlers.job(name="async", max_attempts=7)
async def in_slot(ctx: JobContext[Resources]) -> list[Any]:
    return described(ctx)


@handlers.job(name="bare", max_attempts=7)
async def bare() -> list[Any]:
    own, task, thread = described(None), asyncio.create_task(helper()), asyncio.to_thread(described, None)
    assert own == await task == await thread
    return own


async def helper() -> list[Any]:
    await asyncio.sleep(0)
    return described(None)


@handlers.job(name="thread", max_attempts=7)
def in_thread(ctx: JobContext[Resources]) -> list[Any]:
    return described(ctx)


@handlers.job(name="thread_bare", max_attempts=7)
def in_thread_bare() -> list[Any]:
    assert request_id.get() == "of the lifespan", "what another job has set is not seen"
    request_id.set("of a job")
    request_id.set("of the lifespan")
    return described(None)


@handlers.job(name="transactional", max_attempts=7, transactional=True)
async def in_task() -> list[Any]:
    return described(None)


@handlers.job(name="other", max_attempts=7)
async def other() -> list[Any]:
    return described(None)


def database() -> str:
    now = current_job()
    assert now is not None
    return f"database for {now.handler}"


@surrounded.around
async def around(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
    steps.append(f"before {ctx.handler}")
    request_id.set("of the middleware")
    try:
        result = await run()
    except BaseException as error:
        steps.append(f"{type(error).__name__} in {ctx.handler}")
        raise
    steps.append(f"after {ctx.handler}")
    return [*result, "wrapped"] if isinstance(result, list) else result


@surrounded.job(name="s.async")
async def s_async(value: int) -> list[Any]:
    return [value, request_id.get()]


@surrounded.job(name="s.thread", max_attempts=1)
def s_thread(value: int, db: str = Depends(database)) -> list[Any]:
    assert threading.current_thread() is not threading.main_thread()
    return [value, request_id.get(), db]


@surrounded.job(name="s.transactional", transactional=True)
async def s_transactional(ctx: JobContext, value: int) -> list[Any]:
    async with ctx.transaction() as connection:
        connection.log.append("wrote")
    return [value, request_id.get()]


@surrounded.job(name="s.fails", max_attempts=1)
def s_fails() -> None:
    raise ValueError("on purpose")


@surrounded.job(name="s.stuck", max_attempts=1, timeout=30)
def s_stuck(ctx: JobContext) -> str:
    began.set()
    release.wait(PATIENCE_SECONDS)
    steps.append("cancelled" if ctx.cancelled else "not cancelled")
    return "late"


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Lines that were logged, with the root logger as in an agent."""
    out, loggers = io.StringIO(), (logging.getLogger(), logging.getLogger(LOGGER_NAME))
    before = [(list(one.handlers), one.level, one.propagate) for one in loggers]
    configure("info", "json", out, root=True)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    for one, (handlers_before, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:], one.propagate = handlers_before, propagate
        one.setLevel(level)


@contextlib.asynccontextmanager
async def working(registry: Handlers) -> AsyncIterator[WorkerHarness]:
    steps.clear()
    release.clear()
    began.clear()
    held = OpenLifespans(registry, PATIENCE_SECONDS)
    await held.open()
    harness: WorkerHarness = held.context.run(WorkerHarness, registry, AgentSettings(threads=2))
    harness.bucket_worker.use_lifespans(held)
    transactional = harness.bucket_worker._dispatcher._transactional
    transactional._source = FakeTransactions(harness)
    try:
        async with harness:
            yield harness
    finally:
        release.set()
        assert await held.close(PATIENCE_SECONDS) is None


def entry(handler: str, **args: object) -> Entry:
    return Entry(new_id(), 1, handler, msgspec.json.encode(args))


async def results(harness: WorkerHarness, entries: list[Entry]) -> list[Any]:
    harness.submit(harness.bucket(), entries)
    await harness.settled()
    rows = [final(harness, each) for each in entries]
    for row in rows:
        assert row.state is JobState.SUCCEEDED, row.error and decode_error(row.error)
    return [msgspec.json.decode(row.result or b"null") for row in rows]


def final(harness: WorkerHarness, job: Entry) -> FinalRow:
    return next(row for row in harness.master.finals if row.id == job.id)


@pytest.mark.parametrize("kind", ["async", "bare", "thread", "thread_bare", "transactional"])
async def test_each_kind_of_handler_has_its_resources_its_job_and_the_lifespans_variables(
    kind: str, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with working(handlers) as harness:
        entries = [entry(kind) for _ in range(3)]
        got = await results(harness, entries)
    assert got == [[kind, each.id.hex(), 1, ["pool"], "of the lifespan", 7] for each in entries]
    seen = [(line["job"], line["handler"], line["attempt"], line["level"]) for line in lines() if line.get("logger")]
    assert {(kind, 1, "info")} == {line[1:] for line in seen}
    assert {line[0].replace("-", "") for line in seen} == {each.id.hex() for each in entries}


async def test_jobs_one_after_another_in_one_slot_have_separate_contexts() -> None:
    async with working(handlers) as harness:
        entries = [entry(("async", "other")[n % 2]) for n in range(100)]
        got = await results(harness, entries)
    assert [row[1] for row in got] == [each.id.hex() for each in entries]


async def test_middleware_and_dependencies_surround_handlers_of_every_kind() -> None:
    async with working(surrounded) as harness:
        names = ("s.async", "s.thread", "s.transactional")
        got = await results(harness, [entry(name, value=n) for n, name in enumerate(names)])
    assert got == [
        [0, "of the middleware", "wrapped"],
        [1, "of the middleware", "database for s.thread", "wrapped"],
        [2, "of the middleware", "wrapped"],
    ]
    assert sorted(steps) == sorted(f"{word} {name}" for name in names for word in ("before", "after"))


async def test_the_error_of_a_thread_passes_through_the_middleware() -> None:
    async with working(surrounded) as harness:
        failing = entry("s.fails")
        harness.submit(harness.bucket(), [failing])
        await harness.settled()
        row = final(harness, failing)
    assert row.state is JobState.FAILED
    assert row.error is not None
    assert decode_error(row.error).message == "on purpose"
    assert steps == ["before s.fails", "ValueError in s.fails"]


async def test_a_thread_in_middleware_is_stopped_at_its_deadline_and_its_late_result_is_dropped() -> None:
    async with working(surrounded) as harness:
        stuck = entry("s.stuck")
        owned = harness.bucket()
        harness.submit(owned, [stuck])
        await until(began.is_set)
        harness.clock.now += 31
        harness.trust()
        await harness.settled()
        row = final(harness, stuck)
        assert row.error is not None
        assert decode_error(row.error).reason == "timeout"
        assert steps == ["before s.stuck", "CancelledError in s.stuck"]
        assert harness.bucket_worker._dispatcher._threads.quarantined == 1, "another thread takes the place"
        release.set()
        await until(lambda: len(steps) == 3)
        assert steps[-1] == "cancelled"
        await turns(3)
        assert (await results(harness, [entry("s.thread", value=1)]))[0][0] == 1


impatient, deaf = Handlers(), Handlers()
ears = asyncio.Event()


@impatient.around
async def one_moment(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
    try:
        async with asyncio.timeout(0.01):
            return await run()
    except TimeoutError:
        return "without it"


@deaf.around
async def never_stops(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
    while not ears.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            began.set()
            await ears.wait()
    return await run()


for registry in (impatient, deaf):

    @registry.job(name="waits", max_attempts=1, timeout=30)
    def waits(ctx: JobContext) -> str:
        release.wait(PATIENCE_SECONDS)
        steps.append("cancelled" if ctx.cancelled else "not cancelled")
        return "late"


async def test_middleware_may_give_up_a_thread_and_return_another_result() -> None:
    async with working(impatient) as harness:
        assert await results(harness, [entry("waits")]) == ["without it"]
        assert harness.bucket_worker._dispatcher._threads.quarantined == 1
        release.set()
        await until(lambda: steps == ["cancelled"])


async def test_middleware_of_a_thread_that_does_not_stop_is_given_up() -> None:
    ears.clear()
    async with working(deaf) as harness:
        deaf_job = entry("waits")
        harness.submit(harness.bucket(), [deaf_job])
        await until(began.is_set)
        for seconds in (31, 11):
            harness.clock.now += seconds
            harness.trust()
            await turns(3)
            harness.bucket_worker._dispatcher.sweep(harness.clock.now)
        await harness.settled()
        error = final(harness, deaf_job).error
        assert error is not None
        assert decode_error(error).reason == "timeout"
        assert harness.bucket_worker._dispatcher.stuck == 1
        ears.set()
        release.set()
        await until(lambda: harness.bucket_worker._dispatcher.stuck == 0)
        assert [row.id for row in harness.master.finals].count(deaf_job.id) == 1


leaving = Handlers()
left: list[asyncio.Task[None]] = []
told: list[str | None] = []
workers: list[asyncio.Task[Any] | None] = []
"""Tasks of the slots that ran the jobs."""


async def tell(when: asyncio.Event) -> None:
    await when.wait()
    now = current_job()
    told.append(None if now is None else now.handler)


@leaving.job(name="leaves")
async def leaves() -> None:
    when = asyncio.Event()
    when.set()
    await asyncio.create_task(tell(when))
    workers.append(asyncio.current_task())
    left.append(asyncio.create_task(tell(go)))


@leaving.job(name="next")
async def next_job() -> None:
    go.set()
    workers.append(asyncio.current_task())
    await left[0]
    now = current_job()
    told.append(now.handler if now is not None else None)


go = asyncio.Event()


async def test_a_task_that_a_handler_leaves_behind_is_no_part_of_the_next_job() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)
    told.clear()
    workers.clear()
    left.clear()
    go.clear()
    try:
        harness = WorkerHarness(leaving, AgentSettings(max_running=1))
        async with harness:
            owned = harness.bucket()
            harness.submit(owned, [entry("leaves"), entry("next")])
            await harness.settled()
    finally:
        loop.set_task_factory(None)
    assert told == ["leaves", None, "next"]
    assert workers[0] is workers[1], "a task is no reason for another slot"


left_threads: list[asyncio.Future[str | None]] = []
thread_may_look = threading.Event()


def name_of_current_job() -> str | None:
    thread_may_look.wait(10)
    now = current_job()
    return None if now is None else now.handler


@leaving.job(name="leaves_thread")
async def leaves_thread() -> str | None:
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    left_threads.append(loop.run_in_executor(None, context.run, name_of_current_job))
    now = current_job()
    return None if now is None else now.handler


@leaving.job(name="after_thread")
async def after_thread() -> list[str | None]:
    thread_may_look.set()
    now = current_job()
    return [await left_threads[0], None if now is None else now.handler]


async def test_a_thread_that_a_handler_leaves_behind_is_no_part_of_the_next_job() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(LoopExecutor())
    left_threads.clear()
    thread_may_look.clear()
    async with WorkerHarness(leaving, AgentSettings(max_running=1)) as harness:
        harness.submit(harness.bucket(), [entry("leaves_thread"), entry("after_thread")])
        await harness.settled()
        assert [row.result for row in harness.master.finals] == [b'"leaves_thread"', b'[null,"after_thread"]']


async def test_a_changed_log_level_reaches_worker_processes_that_start_later() -> None:
    async with WorkerHarness(leaving) as harness:
        pool = harness.bucket_worker._pool
        assert pool._launcher.setup.log_level == "info"
        settings = ClusterSettings(observability=Observability(log_level="error"))
        harness.bucket_worker.retune(settings, AgentSettings())
        assert pool._launcher.setup.log_level == "error"


async def test_the_number_of_lines_left_out_comes_with_a_logged_line_too(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerHarness(leaving) as harness:
        worker = harness.bucket_worker
        for _ in range(LINES_PER_SECOND + 7):
            worker._printed("", 1, None)
        harness.clock.now += 2.0
        harness.trust()
        caplog.clear()
        worker._printed("\x1eWARNING shop.mail: sent", 1, None)
        worker._printed("\x1eWARNING shop.mail: sent again", 1, None)
    first, second = caplog.records
    assert vars(first)["jobmaster_fields"] == {"worker": 1, "left_out": 7}
    assert vars(second)["jobmaster_fields"] == {"worker": 1}


async def test_extra_fields_of_a_worker_come_after_those_of_the_agent_and_replace_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WorkerHarness(leaving) as harness:
        harness.bucket_worker._printed('\x1e{"order": 7, "worker": 99}\x1fWARNING shop.mail: sent', 1, None)
    (record,) = caplog.records
    assert list(vars(record)["jobmaster_fields"].items()) == [("worker", 1), ("order", 7)]
    assert record.getMessage() == "sent"


async def test_a_handler_without_anything_around_it_is_called_without_a_context() -> None:
    plain = Handlers()

    @plain.job(name="plain")
    async def work() -> None: ...

    handler = plain.get("plain")
    assert handler is not None
    assert not handler.needs_context
    assert handler.runs_on_loop
