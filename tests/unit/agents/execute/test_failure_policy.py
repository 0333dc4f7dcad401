"""What follows an attempt by the handler's own rules and decisions: on the loop, in threads, in worker processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_error, decode_headers, encode_headers
from jobmaster.handlers import Cancel, Fail, Handlers, JobContext, Retry, Snooze
from jobmaster.handlers.decisions import PAUSE_SECONDS_MAX
from jobmaster.model.job import Entry, ErrorInfo, FinalRow, Headers, HoldRow, JobState
from jobmaster.settings.model import AgentSettings
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from jobmaster_agents.state.job_table import ClaimedJob, JobPhase
from tests.support.bucket_worker_fixture import Row, WorkerHarness
from tests.support.waiting import until
from tests.unit.agents.execute.executor_fixture import CLOCK, ExecutorHarness
from tests.unit.agents.execute.test_dispatch import SlowPool

handlers = Handlers()
go = threading.Event()
asked: list[tuple[str, int, str]] = []


def policy(ctx: JobContext[Any], error: Exception) -> Any:
    asked.append((ctx.handler, ctx.attempt, type(error).__name__))
    match str(error):
        case "enough":
            return False
        case "later":
            return 77
        case "usual":
            return True
        case "nonsense":
            return "soon"
    return None


@handlers.job(name="typed", retry_on=ConnectionError, backoff=5, backoff_jitter=0.0)
async def typed(kind: str) -> None:
    raise ConnectionResetError("gone") if kind == "lost" else KeyError(kind)


@handlers.job(name="asks", retry=policy, give_up_on=ValueError, backoff=5, backoff_jitter=0.0, max_attempts=3)
async def asks(text: str, value: bool = False) -> None:
    raise ValueError(text) if value else KeyError2(text)


class KeyError2(Exception):
    pass


@handlers.job(name="listed", delays=[1, 60, 900])
async def listed() -> None:
    raise OSError("no")


@handlers.job(name="listed_retry", delays=[7])
async def listed_retry() -> None:
    raise Retry


@handlers.job(name="hangs", timeout=0.1, give_up_on=TimeoutError)
async def hangs() -> None:
    await asyncio.sleep(1e6)


@handlers.job(
    name="hangs_asked", timeout=0.1, retry=lambda ctx, error: 55 if isinstance(error, TimeoutError) else False
)
async def hangs_asked() -> None:
    await asyncio.sleep(1e6)


@handlers.job(name="snoozes")
async def snoozes(ctx: JobContext[Any], after: float) -> None:
    raise Snooze(after, f"snooze {ctx.snoozes} of attempt {ctx.attempt}")


@handlers.job(name="fails", max_attempts=4)
async def fails() -> None:
    raise Fail("no such account")


class Careless(Snooze):
    def __init__(self, after: Any) -> None:
        """Past the check."""
        if after is not None:
            self.after_seconds = after


@handlers.job(name="careless")
async def careless(after: Any) -> None:
    raise Careless(float(after) if after in ("nan", "inf") else after)


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Computed(Retry):
    @property
    def after_seconds(self) -> float | None:
        """Of foreign code."""
        raise SystemExit(3)

    @after_seconds.setter
    def after_seconds(self, value: float | None) -> None: ...


DECISIONS: dict[str, Any] = {
    "cancel": lambda: Cancel(OSError("card refused")),  # type: ignore[arg-type]
    "fail": lambda: Fail(OSError("card refused")),  # type: ignore[arg-type]
    "snooze": lambda: Snooze(5, OSError("card refused")),  # type: ignore[arg-type]
    "retry": lambda: Retry(5, OSError("card refused")),  # type: ignore[arg-type]
    "unreadable": lambda: Cancel(Unreadable()),  # type: ignore[arg-type]
    "without text": lambda: Fail(TimeoutError()),  # type: ignore[arg-type]
    "none": lambda: Cancel(None),  # type: ignore[arg-type]
    "huge snooze": lambda: Careless(10**400),
    "computed": lambda: Computed(3, "card refused"),
    "exits": lambda: ExitingText("card refused"),
}


class ExitingText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@handlers.job(name="decides")
async def decides(how: str) -> None:
    raise DECISIONS[how]()


@handlers.job(name="decides_in_thread", mode="thread")
def decides_in_thread(how: str) -> None:
    raise DECISIONS[how]()


@handlers.job(name="in_group")
async def in_group(members: int) -> None:
    async def put_off() -> None:
        raise Snooze(900)

    async with asyncio.TaskGroup() as group:
        for _ in range(members):
            group.create_task(put_off())


@handlers.job(name="superseded")
async def superseded() -> None:
    while not go.is_set():  # noqa: ASYNC110 - set by the test
        await asyncio.sleep(0.01)
    raise Snooze(1)


@handlers.job(name="echo")
async def echo() -> str:
    return "here"


@handlers.job(name="slow", warn_after=0.06, timeout=60)
async def slow(ctx: JobContext[Any]) -> list[Any]:
    before = ctx.overdue
    while not go.is_set():  # noqa: ASYNC110 - set by the test
        await asyncio.sleep(0.01)
    return [ctx.warn_after, before, ctx.overdue]


@handlers.job(name="never_slow", timeout=60)
async def never_slow(ctx: JobContext[Any]) -> list[Any]:
    while not go.is_set():  # noqa: ASYNC110 - set by the test
        await asyncio.sleep(0.01)
    return [ctx.warn_after, ctx.overdue]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    asked.clear()
    go.clear()
    yield
    go.set()


@pytest.fixture
async def harness() -> AsyncIterator[ExecutorHarness]:
    made = ExecutorHarness(handlers, AgentSettings(slots=4))
    yield made
    await made.executor.aclose()


async def end_of(
    harness: ExecutorHarness, name: str, args: bytes = b"{}", **entry: Any
) -> tuple[FinalRow | HoldRow, ErrorInfo, float]:
    """The row of one job, why, and the pause before its next attempt."""
    done = len(harness.sink.rows)
    owned = harness.bucket()
    begun = CLOCK.wall_us()
    harness.put(owned, [(name, args)], **entry)
    row = (await harness.sink.wait_rows(done + 1))[-1]
    pause = (row.due_us - begun) / 1e6 if isinstance(row, HoldRow) else 0.0
    return row, decode_error(row.error or NO_ERROR), pause


NO_ERROR = b'{"type":"","message":""}'


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1.0)


# ---------------------------------------------------------------- rules


async def test_an_error_outside_retry_on_ends_the_job(harness: ExecutorHarness) -> None:
    row, why, _ = await end_of(harness, "typed", b'{"kind":"other"}')
    assert isinstance(row, FinalRow)
    assert (row.state, row.attempt, why.reason, why.type) == (JobState.FAILED, 1, "given_up", "KeyError")
    row, why, pause = await end_of(harness, "typed", b'{"kind":"lost"}')
    assert isinstance(row, HoldRow)
    assert (row.attempt, why.reason, pause) == (1, "error", near(5))
    assert harness.outcome_builder.retried == 1


@pytest.mark.parametrize(
    ("args", "reason", "pause"),
    [
        (b'{"text":"enough"}', "given_up", None),
        (b'{"text":"later"}', "error", 77),
        (b'{"text":"later","value":true}', "error", 77),
        (b'{"text":"usual","value":true}', "error", 5),
        (b'{"text":"no opinion"}', "error", 5),
        (b'{"text":"no opinion","value":true}', "given_up", None),
    ],
)
async def test_the_policy_decides_before_the_types(
    harness: ExecutorHarness, args: bytes, reason: str, pause: float | None
) -> None:
    row, why, waits = await end_of(harness, "asks", args)
    assert (why.reason, isinstance(row, HoldRow)) == (reason, pause is not None)
    assert waits == near(pause or 0)
    assert asked == [("asks", 1, why.type.rpartition(".")[2])]
    assert not harness.policy_problems


async def test_a_policy_that_returns_nonsense_is_named_and_the_usual_follows(harness: ExecutorHarness) -> None:
    row, why, pause = await end_of(harness, "asks", b'{"text":"nonsense"}')
    assert (isinstance(row, HoldRow), why.reason, pause) == (True, "error", near(5))
    assert [problem.split(",")[0] for problem in harness.policy_problems] == ["it returned 'soon'"]


async def test_the_attempts_are_the_bound_of_the_policy(harness: ExecutorHarness) -> None:
    owned = harness.bucket()
    [job] = harness.put(owned, [("asks", b'{"text":"later"}')])
    job.entry = msgspec.structs.replace(job.entry, attempt=2)
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, FinalRow)
    assert (row.state, row.attempt, decode_error(row.error or b"").reason) == (JobState.FAILED, 3, "error")


@pytest.mark.parametrize(("used", "pause"), [(0, 1), (1, 60), (2, 900), (3, None)])
async def test_listed_delays_are_kept_exactly_and_then_it_is_over(
    harness: ExecutorHarness, used: int, pause: float | None
) -> None:
    begun = CLOCK.wall_us()
    [job] = harness.put(harness.bucket(), [("listed", b"{}")])
    job.entry = msgspec.structs.replace(job.entry, attempt=used)
    [row] = await harness.sink.wait_rows(1)
    if pause is None:
        assert isinstance(row, FinalRow)
    else:
        assert isinstance(row, HoldRow)
        assert (row.due_us - begun) / 1e6 == near(pause)
        assert harness.sink.heres == [pause <= 300]


async def test_a_plain_retry_waits_for_the_listed_delay(harness: ExecutorHarness) -> None:
    _, why, pause = await end_of(harness, "listed_retry")
    assert (why.reason, pause) == ("retry", near(7))


async def test_the_time_out_of_an_attempt_counts_as_a_timeout_error(harness: ExecutorHarness) -> None:
    row, why, _ = await end_of(harness, "hangs")
    assert (isinstance(row, FinalRow), why.reason) == (True, "timeout")
    row, why, pause = await end_of(harness, "hangs_asked")
    assert (isinstance(row, HoldRow), why.reason, pause) == (True, "timeout", near(55))


# ---------------------------------------------------------------- decisions


async def test_fail_ends_the_job_with_attempts_left(harness: ExecutorHarness) -> None:
    row, why, _ = await end_of(harness, "fails")
    assert isinstance(row, FinalRow)
    assert (row.state, row.attempt, why.reason, why.message) == (JobState.FAILED, 1, "failed", "no such account")


@pytest.mark.parametrize(("after", "here"), [(30, True), (3600, False), (-5, True)])
async def test_a_snooze_uses_up_no_attempt_and_is_counted(harness: ExecutorHarness, after: float, here: bool) -> None:
    row, why, pause = await end_of(harness, "snoozes", b'{"after":%d}' % after)
    assert isinstance(row, HoldRow)
    assert (row.attempt, why.reason, why.message) == (0, "snoozed", "snooze 0 of attempt 1")
    assert pause == near(max(after, 0))
    assert harness.sink.heres == [here], "as a retry: in its bucket within the transient threshold"
    assert decode_headers(row.headers) == Headers(snoozes=1)
    assert harness.outcome_builder.retried == 0


async def test_a_snooze_keeps_the_other_headers(harness: ExecutorHarness) -> None:
    headers = Headers(tags=("a",), metadata={"b": "c"}, at_most_once=True, snoozes=2)
    [job] = harness.put(harness.bucket(), [("snoozes", b'{"after":1}')])
    job.entry = msgspec.structs.replace(job.entry, headers=encode_headers(headers), attempt=1)
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, HoldRow)
    assert (decode_headers(row.headers), row.attempt) == (msgspec.structs.replace(headers, snoozes=3), 1)
    assert decode_error(row.error or b"").message == "snooze 2 of attempt 2"


async def test_the_bound_of_snoozes_ends_the_job_and_is_named(harness: ExecutorHarness) -> None:
    [job] = harness.put(harness.bucket(), [("snoozes", b'{"after":1}')])
    job.entry = msgspec.structs.replace(job.entry, headers=encode_headers(Headers(snoozes=3)))
    [row] = await harness.sink.wait_rows(1)
    assert isinstance(row, FinalRow)
    why = decode_error(row.error or b"")
    assert (row.state, why.reason) == (JobState.FAILED, "snoozed_out")
    assert why.message.startswith("the handler has put the job off 3 times, and jobs.max_snoozes is 3: snooze 3")


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        ("null", 0),
        ('"nan"', 0),
        ('"inf"', 0),
        ('"soon"', 0),
        ("[]", 0),
        ("-7", 0),
        ("1e300", PAUSE_SECONDS_MAX),
        ("true", 0),
    ],
)
async def test_a_decision_past_its_check_harms_no_other_job(
    harness: ExecutorHarness, after: str, seconds: float
) -> None:
    row, why, pause = await end_of(harness, "careless", b'{"after":%s}' % after.encode())
    assert (isinstance(row, HoldRow), why.reason, pause) == (True, "snoozed", near(seconds))
    row, _, _ = await end_of(harness, "echo")
    assert row.state == "SUCCEEDED" if isinstance(row, FinalRow) else False


DECISION_ENDS = [
    ("cancel", "CANCELLED", "card refused"),
    ("fail", "FAILED", "card refused"),
    ("snooze", None, "card refused"),
    ("retry", None, "card refused"),
    ("unreadable", "CANCELLED", "<its text cannot be read: RuntimeError>"),
    ("without text", "FAILED", "TimeoutError"),
    ("none", "CANCELLED", "the handler cancelled its own job"),
    ("huge snooze", None, "the handler put the job off"),
    ("computed", None, "card refused"),
    ("exits", None, "<its text cannot be read: SystemExit>"),
]


@pytest.mark.parametrize(("how", "state", "message"), DECISION_ENDS)
async def test_a_decision_of_any_content_has_its_outcome_and_harms_no_other_job(
    harness: ExecutorHarness, how: str, state: str | None, message: str
) -> None:
    row, why, _ = await end_of(harness, "decides", b'{"how":"%s"}' % how.encode())
    assert (row.state if isinstance(row, FinalRow) else None, why.message) == (state, message)
    row, _, _ = await end_of(harness, "echo")
    assert row.state == "SUCCEEDED" if isinstance(row, FinalRow) else False


@pytest.mark.parametrize(("how", "state", "message"), DECISION_ENDS)
async def test_a_decision_of_any_content_has_its_outcome_in_a_thread(how: str, state: str | None, message: str) -> None:
    async with WorkerHarness(handlers, AgentSettings(threads=1)) as harness:
        entry = Entry(new_id(), 1, "decides_in_thread", b'{"how":"%s"}' % how.encode())
        harness.submit(harness.bucket(), [entry])
        await until(lambda: harness.master.finals or harness.master.rows.get(entry.id) is not None)
        await until(lambda: harness.bucket_worker.executor.running == 0)
        if state is not None:
            await harness.settled()
            (final,) = harness.master.finals
            assert (final.state, decode_error(final.error or b"").message) == (state, message)


async def test_a_decision_counts_as_the_only_error_of_a_task_group(harness: ExecutorHarness) -> None:
    _, why, pause = await end_of(harness, "in_group", b'{"members":1}')
    assert (why.reason, pause) == ("snoozed", near(900))
    _, why, _ = await end_of(harness, "in_group", b'{"members":2}')
    assert (why.reason, why.type) == ("error", "ExceptionGroup"), "two decisions are none"


async def test_a_superseded_run_puts_nothing_off(harness: ExecutorHarness) -> None:
    owned = harness.bucket()
    [job] = harness.put(owned, [("superseded", b"{}")])
    await until(lambda: harness.executor.running)
    job.phase = JobPhase.GONE
    go.set()
    harness.put(owned, [("echo", b"{}")])
    rows = await harness.sink.wait_rows(1)
    await until(lambda: not harness.executor.running)
    assert [row.handler for row in rows] == ["echo"]


# ---------------------------------------------------------------- longer than expected


async def test_a_run_longer_than_warn_after_is_named_once_and_goes_on(harness: ExecutorHarness) -> None:
    owned = harness.bucket()
    [job] = harness.put(owned, [("slow", b"{}")])
    harness.put(owned, [("never_slow", b"{}")])
    await until(lambda: harness.overdue)
    harness.executor._sweep()
    assert [(each is job, 0.05 < seconds < 5) for each, seconds in harness.overdue] == [(True, True)]
    go.set()
    rows = await harness.sink.wait_rows(2)
    results = {row.handler: row.result for row in rows if isinstance(row, FinalRow)}
    assert results == {"slow": b"[0.06,false,true]", "never_slow": b"[null,false]"}


@handlers.job(name="hurried", warn_after=0.5, timeout=60)
async def hurried() -> None:
    while not go.is_set():  # noqa: ASYNC110 - set by the test
        await asyncio.sleep(0.01)


@handlers.job(name="fenced", start="fenced", timeout=60)
async def fenced() -> None: ...


async def test_a_start_that_waits_for_its_write_is_not_overdue_by_the_time_of_another_job() -> None:
    harness, may_start = ExecutorHarness(handlers, AgentSettings(slots=1, max_running=1)), asyncio.Event()

    async def authorise(job: ClaimedJob) -> bool:
        await may_start.wait()
        return True

    harness.executor._authorise = authorise
    owned, begun = harness.bucket(), CLOCK.boottime()
    harness.put(owned, [("hurried", b"{}")])
    await until(lambda: harness.executor.running)
    harness.executor._sweep()
    go.set()
    harness.put(owned, [("fenced", b"{}")])
    await harness.sink.wait_rows(1)
    await until(lambda: CLOCK.boottime() > begun + 1.0)
    harness.executor._sweep()
    assert not harness.overdue
    may_start.set()
    await harness.sink.wait_rows(2)
    await harness.executor.aclose()


# ---------------------------------------------------------------- threads and worker processes

dispatched = Handlers()


@dispatched.job(name="thread", give_up_on=KeyError, warn_after=0.05, timeout=60)
def in_thread(what: str) -> None:
    if what == "wait":
        go.wait(10)
        return
    raise {"snooze": Snooze(900, "later"), "fail": Fail("never"), "key": KeyError("k"), "os": OSError("o")}[what]


@dispatched.job(name="process", mode="process", timeout=60, warn_after=0.05)
def in_process() -> None:
    raise AssertionError("worker processes are not started here")


@dispatched.job(name="once", delivery="at_most_once", mode="thread", timeout=60)
def once(ctx: JobContext[Any]) -> str:
    if not ctx.snoozes:
        raise Snooze(900, "before anything was done")
    return "sent"


@pytest.fixture
async def workers() -> AsyncIterator[WorkerHarness]:
    made = WorkerHarness(dispatched, AgentSettings(slots=4, threads=2, isolated_processes=1))
    made.pool = pool = SlowPool()  # type: ignore[attr-defined]
    made.bucket_worker._dispatcher._pool = pool  # type: ignore[assignment]
    async with made:
        yield made


def held(harness: WorkerHarness) -> list[HoldRow]:
    return [row for _, rows in (*harness.master.of("hold"), *harness.master.of("retry_here")) for row in rows]


@pytest.mark.parametrize(
    ("what", "state", "reason"),
    [("snooze", "", "snoozed"), ("os", "", "error"), ("fail", "FAILED", "failed"), ("key", "FAILED", "given_up")],
)
async def test_a_threaded_handler_decides_alike(workers: WorkerHarness, what: str, state: str, reason: str) -> None:
    entry = Entry(new_id(), 1, "thread", b'{"what":"%s"}' % what.encode())
    workers.submit(workers.bucket(), [entry])
    await workers.settled()
    rows: list[FinalRow | HoldRow] = [*held(workers), *workers.master.finals]
    assert [(getattr(row, "state", ""), decode_error(row.error or b"").reason) for row in rows] == [(state, reason)]


async def test_a_snooze_of_a_job_delivered_at_most_once_is_another_start(workers: WorkerHarness) -> None:
    """By the handler's own wish alone: its first run ends HELD under its identity, before another may begin."""
    bucket, entry = workers.bucket(), Entry(new_id(), 1, "once", b"{}")
    workers.submit(bucket, [entry])
    await workers.settled()
    [row] = held(workers)
    assert (row.attempt, decode_headers(row.headers)) == (0, Headers(at_most_once=True, snoozes=1))
    workers.master.rows[entry.id] = Row("ASSIGNED", 2, bucket.fence.bucket_id, bucket.fence.epoch)  # onboarded
    workers.submit(bucket, [Entry(entry.id, 2, "once", b"{}", headers=row.headers)])
    await workers.settled()
    assert [final.state for final in workers.master.finals] == ["SUCCEEDED"]
    starts = [each for _, rows in workers.master.of("persist") for each in rows]
    assert [(start.state, start.token) for start in starts] == [("PROCESSING", 1), ("PROCESSING", 2)]


ENDS = {
    "snooze": (AttemptResult(kind=ResultKind.SNOOZE, after_seconds=900.0), "snoozed", "HELD 0"),
    "fail": (AttemptResult(kind=ResultKind.FAIL), "failed", "FAILED 1"),
    "error": (AttemptResult(kind=ResultKind.ERROR, after_seconds=900.0), "error", "HELD 1"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_what_a_worker_process_reports_is_recorded(workers: WorkerHarness, name: str) -> None:
    result, reason, expected = ENDS[name]
    entry = Entry(new_id(), 1, "process", b"{}")
    workers.submit(workers.bucket(), [entry])
    pool: SlowPool = workers.pool  # type: ignore[attr-defined]
    await until(lambda: entry.id in pool.begun)
    info = ErrorInfo(type="T", message="m", reason=reason)
    pool.orders[entry.id][0].set_result(msgspec.structs.replace(result, error=info))
    await workers.settled()
    rows: list[FinalRow | HoldRow] = [*held(workers), *workers.master.finals]
    [row] = rows
    assert (f"{getattr(row, 'state', 'HELD')} {row.attempt}", decode_error(row.error or b"").reason) == (
        expected,
        reason,
    )
    if isinstance(row, HoldRow):
        assert (row.due_us - workers.clock.wall_us()) / 1e6 == pytest.approx(900, abs=20)


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_a_dispatched_run_longer_than_warn_after_is_counted_once(workers: WorkerHarness, kind: str) -> None:
    entry = Entry(new_id(), 1, kind, b'{"what":"wait"}' if kind == "thread" else b"{}")
    workers.submit(workers.bucket(), [entry])
    overdue = workers.bucket_worker._telemetry.attempts_overdue
    await until(lambda: workers.bucket_worker._dispatcher.started_before(float("inf")))
    dispatcher, now = workers.bucket_worker._dispatcher, workers.clock.boottime()
    dispatcher.sweep(now + 0.04)
    assert not overdue
    dispatcher.sweep(now + 0.06)
    dispatcher.sweep(now + 0.08)
    assert dict(overdue) == {(kind, "default", "medium"): 1}
    go.set()
    if kind == "process":
        workers.pool.orders[entry.id][0].set_result(AttemptResult(kind=ResultKind.OK))  # type: ignore[attr-defined]
    await workers.settled()
