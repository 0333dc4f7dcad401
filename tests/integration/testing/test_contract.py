"""One suite for jobs in memory, in manual and in inline mode, and for a real cluster: what a test sees in memory is what
production shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec
import pytest

from jobmaster import (
    BulkFailed,
    Cluster,
    ClusterSettings,
    Conflict,
    DurabilityRefused,
    Handlers,
    InputError,
    InvalidArguments,
    InvalidDueTime,
    JobFailed,
    JobReceipt,
    JobState,
    NotFound,
    UnknownHandler,
    UnknownLane,
    Unserved,
    call,
)
from jobmaster.clock import new_id
from jobmaster.handlers import JobContext
from jobmaster.model.job_log import LogLine
from jobmaster.model.run_progress import RunProgress
from jobmaster.testing import Jobs, RealCluster
from jobmaster.testing.embedded import servers
from tests.integration.testing import contract_jobs
from tests.integration.testing.contract_jobs import (
    add,
    confirmed,
    context,
    decide,
    in_process,
    in_thread,
    in_thread_until,
    once,
    pay,
    reports,
    reports_in_process,
    reports_in_thread,
    slow,
    until_attempt,
    writes_in_each_attempt,
    writes_lines,
    writes_lines_in_process,
    writes_lines_in_thread,
    wrong_result,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually
from tests.unit.testing.connection import RecordedConnection

MODES = ("manual", "inline", "real")


class Side(NamedTuple):
    """A cluster, and the way to have its jobs run."""

    cluster: Cluster
    run: Callable[[], Awaitable[object]]
    """Run what is due within a second."""
    connection: Any
    """A connection of the application."""

    async def seen(self, receipt: JobReceipt[Any]) -> tuple[str, int, str | None, str | None]:
        """State, attempts, and type and reason of the error, after everything has run."""
        await self.run()
        view = await receipt.get()
        if view.error is None:
            return view.state.value, view.attempt, None, None
        return view.state.value, view.attempt, view.error.type, view.error.reason


@pytest.fixture
def jobmaster_handlers() -> Handlers:
    handlers = Handlers()
    handlers.merge(contract_jobs.handlers)
    handlers.merge(contract_jobs.with_lifespan)
    return handlers


@pytest.fixture
def jobmaster_settings() -> ClusterSettings:
    """Worker processes import the handlers by name; nothing serves the lowest priority."""
    settings = ClusterSettings(handlers=["tests.integration.testing.contract_jobs"])
    agent = settings.agents["default"]
    agent = msgspec.structs.replace(agent, buckets=msgspec.structs.replace(agent.buckets, very_low=0))
    return msgspec.structs.replace(settings, agents={"default": agent})


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each side in turn."""
    return str(request.param)


@pytest.fixture
def real(request: pytest.FixtureRequest, mode: str, monkeypatch: pytest.MonkeyPatch) -> RealCluster | None:
    """The real cluster; the sides in memory need no server. Its agent shares the process of the test, and keeps its lease
    however long a loaded machine stops that."""
    monkeypatch.setattr(servers, "_LEASE_SECONDS", 300.0)
    return request.getfixturevalue("jobmaster_cluster") if mode == "real" else None


@pytest.fixture
async def side(mode: str, real: RealCluster | None, jobs: Jobs) -> AsyncIterator[Side]:
    """One side."""
    connection = RecordedConnection()
    if real is not None:
        dsn = real.settings.master.dsn
        opened = await asyncpg.connect(dsn)
        yield Side(real, lambda: real.drain(due_within=1, timeout=PATIENCE_SECONDS), opened)
        await opened.close()
        return
    jobs.give(connection=connection)
    if mode == "inline":
        with jobs.inline():
            yield Side(jobs.cluster, lambda: jobs.drain(due_within=1), connection)
    else:
        yield Side(jobs.cluster, lambda: jobs.drain(due_within=1), connection)


# ---------------------------------------------------------------- results


async def test_handlers_of_every_mode_give_their_results(side: Side) -> None:
    receipts: list[JobReceipt[Any]] = [
        await side.cluster.submit(call(add, 1)),
        await side.cluster.submit(call(in_thread, [1, 2])),
        await side.cluster.submit(call(in_process, "a")),
    ]
    await side.run()
    assert [await receipt.result(timeout=PATIENCE_SECONDS) for receipt in receipts] == [3, {"sum": 3}, "A"]
    assert [(await receipt.get()).state for receipt in receipts] == [JobState.SUCCEEDED] * 3


@pytest.mark.parametrize("handler", [reports, reports_in_thread, reports_in_process])
async def test_the_last_report_of_a_handler_is_seen(side: Side, handler: Callable[[JobContext], object]) -> None:
    receipt = await side.cluster.submit(call(handler))
    await side.run()
    seen: list[RunProgress] = []

    async def reported() -> bool:
        view = await receipt.get()
        seen[:] = [view.progress] if view.progress else []
        return bool(seen) and seen[0].done == 3

    await eventually(reported, 20, lambda: f"the report, not {seen}")
    assert seen[0].at is not None
    assert msgspec.structs.replace(seen[0], at=None) == RunProgress(done=3, total=4, text="the third")
    assert seen[0].share == 0.75


async def _lines(receipt: JobReceipt[Any], cluster: Cluster, count: int) -> list[tuple[int, str, str]]:
    """Number, level and text of the lines of a job, once there are so many."""
    lines: list[LogLine] = []

    async def written() -> bool:
        lines[:] = await cluster.logs(receipt)
        return len(lines) >= count

    await eventually(written, 20, lambda: f"{count} lines, not {lines}")
    return [(line.number, line.level.label, line.text) for line in lines]


@pytest.mark.parametrize("handler", [writes_lines, writes_lines_in_thread, writes_lines_in_process])
async def test_the_last_lines_of_a_run_are_kept(side: Side, handler: Callable[[JobContext], object]) -> None:
    receipt = await side.cluster.submit(call(handler))
    await side.run()
    warnings = [(number, "warning", f"number {number}") for number in (4, 5, 6)]
    assert await _lines(receipt, side.cluster, 4) == [*warnings, (7, "error", "last one")]
    first, *rest = await side.cluster.logs(receipt, limit=2)
    assert await side.cluster.logs(receipt, after=first) == [*rest, *(await side.cluster.logs(receipt))[2:]]


async def test_each_attempt_has_its_lines(side: Side) -> None:
    receipt = await side.cluster.submit(call(writes_in_each_attempt))
    await side.run()
    assert await _lines(receipt, side.cluster, 2) == [(1, "info", "attempt 1"), (1, "info", "attempt 2")]
    with pytest.raises(NotFound):
        await side.cluster.logs(UUID(int=7))
    with pytest.raises(InputError, match="from 1 to 10000, not 0"):
        await side.cluster.logs(receipt, limit=0)


async def test_the_context_is_that_of_the_submit(side: Side) -> None:
    receipt = await side.cluster.submit(
        call(context), priority="low", tags=["a"], metadata={"b": "c"}, max_attempts=7, after=timedelta(milliseconds=50)
    )
    await side.run()
    name = "tests.integration.testing.contract_jobs.context"
    assert await receipt.result(timeout=PATIENCE_SECONDS) == [name, "default", "low", 1, 7, ["a"], {"b": "c"}]


async def test_resources_middleware_and_context_variables(side: Side) -> None:
    for handler in (contract_jobs.surrounded, contract_jobs.surrounded_thread, contract_jobs.surrounded_process):
        receipt = await side.cluster.submit(handler)
        await side.run()
        expected = ["resources", "variable", "True", f"around {handler.__name__}"]
        assert await receipt.result(timeout=PATIENCE_SECONDS) == expected


async def test_many_jobs_of_one_call(side: Side) -> None:
    summary = await side.cluster.submit_many([call(add, number) for number in range(20)])
    await side.run()
    assert (summary.submitted, {level.value for level in summary.by_level}) == (20, {"store"})
    states = await side.cluster.wait_all(list(summary.ids), timeout=PATIENCE_SECONDS)
    assert set(states.values()) == {JobState.SUCCEEDED}


# ---------------------------------------------------------------- failures


async def test_attempts_are_counted_until_one_succeeds(side: Side) -> None:
    assert await side.seen(await side.cluster.submit(call(until_attempt, 3))) == ("SUCCEEDED", 3, None, None)
    assert await side.seen(await side.cluster.submit(call(in_thread_until, 2))) == ("SUCCEEDED", 2, None, None)


async def test_the_last_attempt_s_error_is_the_job_s(side: Side) -> None:
    receipt = await side.cluster.submit(call(until_attempt, 9))
    assert await side.seen(receipt) == ("FAILED", 3, "LookupError", "error")
    with pytest.raises(JobFailed, match="LookupError: attempt 3") as failed:
        await receipt.result(timeout=PATIENCE_SECONDS)
    assert failed.value.state is JobState.FAILED


@pytest.mark.parametrize(
    ("decision", "seen"),
    [
        ("cancel", ("CANCELLED", 1, "Cancelled", "cancelled")),
        ("retry", ("SUCCEEDED", 2, None, None)),
        ("snooze", ("SUCCEEDED", 1, None, None)),
    ],
)
async def test_a_handler_decides_its_outcome(side: Side, decision: str, seen: tuple[Any, ...]) -> None:
    assert await side.seen(await side.cluster.submit(call(decide, decision))) == seen


async def test_a_handler_fails_for_good(side: Side) -> None:
    state, attempt, _, reason = await side.seen(await side.cluster.submit(call(decide, "fail")))
    assert (state, attempt) == ("FAILED", 1)
    assert reason == "failed"


async def test_failures_that_are_not_the_handler_s(side: Side) -> None:
    assert await side.seen(await side.cluster.submit(call(slow))) == ("FAILED", 1, "Timeout", "timeout")
    assert await side.seen(await side.cluster.submit(call(wrong_result))) == (
        "FAILED",
        1,
        "jobmaster.InvalidResult",
        "result",
    )


async def test_a_job_delivered_at_most_once_has_one_attempt(side: Side) -> None:
    assert await side.seen(await side.cluster.submit(call(once))) == ("FAILED", 1, "LookupError", "error")
    receipt = await side.cluster.submit(call(until_attempt, 2), delivery="at_most_once")
    assert await side.seen(receipt) == ("FAILED", 1, "LookupError", "error")


# ---------------------------------------------------------------- transactions and confirmations


async def test_a_transactional_handler_uses_its_transaction(side: Side) -> None:
    assert await side.seen(await side.cluster.submit(call(pay, 5))) == ("SUCCEEDED", 1, None, None)
    assert await side.seen(await side.cluster.submit(call(pay, -5))) == ("FAILED", 1, "ValueError", "error")


async def test_a_confirmed_run_has_succeeded(side: Side) -> None:
    receipt: JobReceipt[Any] = await side.cluster.submit(call(confirmed, "done"))
    assert await side.seen(receipt) == ("SUCCEEDED", 1, None, None)
    assert await receipt.result(timeout=PATIENCE_SECONDS) == "done"
    unconfirmed = await side.cluster.submit(call(confirmed))
    assert await side.seen(unconfirmed) == ("FAILED", 1, "Unconfirmed", "unconfirmed")


async def _submit_and_fail(side: Side) -> None:
    async with side.cluster.transaction(side.connection) as transaction:
        receipts.append(await transaction.submit(call(add, 1)))
        raise LookupError


receipts: list[JobReceipt[int]] = []


async def test_only_a_committed_transaction_submits(side: Side) -> None:
    receipts.clear()
    with pytest.raises(LookupError):
        await _submit_and_fail(side)
    async with side.cluster.transaction(side.connection) as transaction:
        receipt = await transaction.submit(call(add, 1), priority="low")
    assert receipt.level.value == "transaction"
    assert await side.seen(receipt) == ("SUCCEEDED", 1, None, None)
    with pytest.raises(NotFound):
        await receipts[0].get()


# ---------------------------------------------------------------- checks of a submit, and receipts


async def test_receipts_name_the_level(side: Side) -> None:
    submit: Any = side.cluster.submit
    plain, committed = await submit(call(add, 1)), await submit(call(add, 2), durability="master")
    later = await submit(call(add, 3), after=3600)
    levels = [
        (one.level.value, one.bucket_id is None, one.duplicate, one.unserved) for one in (plain, committed, later)
    ]
    assert levels == [("store", False, False, False), ("master", False, False, False), ("master", True, False, False)]
    with pytest.raises(DurabilityRefused, match="appendfsync 'everysec'"):
        await submit(call(add, 1), durability="store_fsync")
    assert await side.seen(later) == ("HELD", 0, None, None)


async def test_a_priority_that_nothing_serves_is_named(side: Side) -> None:
    receipt = await side.cluster.submit(call(add, 1), priority="very_low")
    assert (receipt.level.value, receipt.unserved) == ("master", True)
    with pytest.raises(Unserved):
        await side.cluster.submit(call(add, 1), priority="very_low", on_unserved="raise")
    with pytest.raises(BulkFailed, match="no bucket serves default/very_low"):
        await side.cluster.submit_many([call(add, 1)], priority="very_low", on_unserved="raise")
    assert (await receipt.get()).state is JobState.HELD


async def test_the_same_key_or_id_gives_the_same_job(side: Side) -> None:
    submit: Any = side.cluster.submit
    first, again = (
        await submit(call(add, 1), idempotency_key="a"),
        await submit(call(add, 1, second=2), idempotency_key="b"),
    )
    assert first.id != again.id
    again = await submit(call(add, 1), idempotency_key="a")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(Conflict):
        await submit(call(add, 2), idempotency_key="a")
    job_id = new_id()
    one = await submit(call(add, 1), job_id=job_id)
    assert (one.id_bytes, one.duplicate) == (job_id, False)
    assert (await submit(call(add, 1), job_id=job_id)).duplicate
    with pytest.raises(Conflict):
        await submit(call(add, 2), job_id=job_id)
    assert await side.seen(one) == ("SUCCEEDED", 1, None, None)


@pytest.mark.parametrize(
    ("handler", "args", "options", "error", "message"),
    [
        (add, {"first": "1"}, {}, InvalidArguments, "argument 'first': expected int, got str"),
        (add, {}, {}, InvalidArguments, "missing argument 'first'"),
        (add, {"firts": 1}, {}, InvalidArguments, "unknown argument 'firts'"),
        ("contract.nowhere", {}, {}, UnknownHandler, "there is no handler 'contract.nowhere'"),
        (add, {"first": 1}, {"lane": "post"}, UnknownLane, "no agent serves lane 'post'"),
        (add, {"first": 1}, {"after": 60, "expires": 30}, InvalidDueTime, "could never start"),
    ],
)
async def test_a_wrong_submit_is_refused_with_the_same_words(
    side: Side, handler: Any, args: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    submit: Any = side.cluster.submit
    with pytest.raises(error, match=message):
        await submit(handler, args, **options)


# ---------------------------------------------------------------- looking up and cancelling


async def test_a_job_that_waits_is_cancelled(side: Side) -> None:
    receipt = await side.cluster.submit(call(add, 1), after=3600)
    assert await receipt.cancel() is JobState.CANCELLED
    assert await receipt.wait(timeout=PATIENCE_SECONDS) is JobState.CANCELLED
    assert (await receipt.get()).attempt == 0
    done = await side.cluster.submit(call(add, 1))
    await side.run()
    assert await done.cancel() is JobState.SUCCEEDED


async def test_a_job_that_waits_gets_other_values(side: Side) -> None:
    receipt = await side.cluster.submit(call(add, 1), after=3600)
    change = await receipt.reprioritise("low")
    assert (change.effect.value, change.state, change.priority.label) == ("CHANGED", JobState.HELD, "low")
    later = await receipt.reschedule(after=7200)
    view = await receipt.get()
    assert (view.due_at, view.priority.label) == (later.due_at, "low")
    with pytest.raises(InputError, match="sets nothing"):
        await side.cluster.change(receipt)
    with pytest.raises(UnknownLane):
        await receipt.move("nowhere")
    with pytest.raises(NotFound):
        await side.cluster.run_now(new_id())
    assert (await receipt.run_now()).changed
    await side.run()
    assert await receipt.result(timeout=PATIENCE_SECONDS) == 3
    late = await receipt.run_now()
    assert (late.effect.value, late.state, late.changed) == ("ALREADY_ENDED", JobState.SUCCEEDED, False)
    short = await side.cluster.submit(call(add, 1), after=60, expires=600)
    with pytest.raises(InvalidDueTime, match="expires at"):
        await short.reschedule(after=600)


async def test_a_job_by_name_has_the_values_of_its_handler(side: Side) -> None:
    receipt = await side.cluster.submit("tests.integration.testing.contract_jobs.add", {"first": 4})
    await receipt.wait_saved(timeout=PATIENCE_SECONDS)
    await side.run()
    view = await side.cluster.get(receipt.id)
    assert (view.priority.label, view.lane, view.arguments) == ("high", "default", {"first": 4})
    assert await side.cluster.result(receipt.id, timeout=PATIENCE_SECONDS) == 6
    with pytest.raises(NotFound):
        await side.cluster.get(new_id())


# ---------------------------------------------------------------- reading and mending


async def test_many_results_come_in_the_order_of_the_question(side: Side) -> None:
    receipts: list[JobReceipt[Any]] = [await side.cluster.submit(call(add, number)) for number in range(5)]
    receipts.append(await side.cluster.submit(call(decide, "fail")))
    await side.run()
    assert await side.cluster.results(receipts[:5], timeout=PATIENCE_SECONDS) == [2, 3, 4, 5, 6]
    *_, failed = await side.cluster.results(receipts, timeout=PATIENCE_SECONDS, return_exceptions=True)
    assert isinstance(failed, JobFailed)
    states = {receipt.id: state async for receipt, state in side.cluster.as_ended(receipts, timeout=PATIENCE_SECONDS)}
    assert [states[receipt.id].value for receipt in receipts] == ["SUCCEEDED"] * 5 + ["FAILED"]


async def test_attempts_are_recorded(side: Side) -> None:
    receipt = await side.cluster.submit(call(until_attempt, 9))
    await side.run()
    lines = [
        (one.outcome, one.concluding, one.error and (one.error.type, one.error.message))
        for one in await side.cluster.attempts(receipt)
    ]
    assert lines == [
        ("failed", False, ("LookupError", "attempt 1")),
        ("failed", False, ("LookupError", "attempt 2")),
        ("FAILED", True, ("LookupError", "attempt 3")),
    ]


async def test_a_failed_job_runs_again_as_a_new_one(side: Side) -> None:
    receipt = await side.cluster.submit(call(decide, "fail"), tags=["a"])
    await side.run()
    again = await side.cluster.retry(receipt, {"decision": "none"})
    assert again.id != receipt.id
    assert await side.seen(again) == ("SUCCEEDED", 1, None, None)
    view = await again.get()
    assert (view.tags, view.metadata) == (("a",), {"retry_of": str(receipt.id)})
    with pytest.raises(Conflict):
        await side.cluster.retry(again)


async def test_jobs_are_listed_by_what_they_are(side: Side) -> None:
    first = await side.cluster.submit(call(add, 1), tags=["a"])
    second = await side.cluster.submit(call(add, 2), tags=["b"])
    failed = await side.cluster.submit(call(decide, "fail"), tags=["a"])
    await side.run()
    jobs = side.cluster.jobs
    assert [view.id for view in await jobs()] == [failed.id, second.id, first.id]
    assert [view.id for view in await jobs(tag="a")] == [failed.id, first.id]
    assert [view.id for view in await jobs(state="FAILED")] == [failed.id]
    assert [view.id for view in await jobs(handler="tests.integration.testing.contract_jobs.add", limit=1)] == [
        second.id
    ]
