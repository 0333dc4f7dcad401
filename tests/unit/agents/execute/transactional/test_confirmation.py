"""Jobs that are confirmed explicitly: by ``ctx.confirm()`` in the handler, or later from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.errors import ConfigError
from jobmaster.model.ids import text
from jobmaster.model.job import Conclusion, Entry, ErrorInfo, StartRule
from jobmaster_agents import call_retry
from jobmaster_agents.execute.attempt_result import AttemptResult, ResultKind
from tests.support.bucket_worker_fixture import DOWN, LOST, Row, turns
from tests.support.fakes import fake_transactions
from tests.support.fakes.fake_transactions import TransactionalHarness
from tests.support.waiting import until

handlers = Handlers()
log: list[str] = []
go = asyncio.Event()


@handlers.job(name="confirms", confirm="explicit", timeout=100, max_attempts=2, backoff=7, backoff_jitter=0.0)
async def confirms(ctx: JobContext) -> str:
    await ctx.confirm("done")
    log.append("confirmed")
    await go.wait()
    return "something else"


@handlers.job(name="breaks_afterwards", confirm="explicit", max_attempts=1)
async def breaks_afterwards(ctx: JobContext) -> None:
    await ctx.confirm(1)
    raise RuntimeError("while tidying up")


@handlers.job(name="forgets", confirm="explicit", max_attempts=1)
async def forgets() -> str:
    return "returned"


@handlers.job(name="twice", confirm="explicit", max_attempts=1)
async def twice(ctx: JobContext) -> None:
    await ctx.confirm(1)
    try:
        await ctx.confirm(2)
    except Exception as error:
        log.append(str(error))


@handlers.job(name="too_large", confirm="explicit", max_attempts=1)
async def too_large(ctx: JobContext) -> None:
    await ctx.confirm("x" * 1_000_000)


@handlers.job(name="confirming", confirm="explicit", max_attempts=1)
async def confirming(ctx: JobContext) -> None:
    try:
        await ctx.confirm(1)
    except Exception as error:
        log.append(type(error).__name__)
        raise


@handlers.job(name="leaves_it", confirm="explicit", confirm_within=60, max_attempts=2, backoff=7, backoff_jitter=0.0)
async def leaves_it(ctx: JobContext) -> None:
    log.append(ctx.confirmation)
    await go.wait()


@handlers.job(name="usual", max_attempts=1)
async def usual(ctx: JobContext) -> None:
    await ctx.confirm()


@handlers.job(name="process", confirm="explicit", mode="process", max_attempts=1)
async def in_process() -> None:
    raise AssertionError("worker processes are not started here")


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TransactionalHarness]:
    monkeypatch.setattr(call_retry, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(fake_transactions, "handlers", handlers)
    log.clear()
    go.clear()
    async with TransactionalHarness() as made:
        yield made
        go.set()


async def test_a_job_is_done_when_its_handler_confirms_and_what_follows_changes_nothing(
    harness: TransactionalHarness,
) -> None:
    (entry,) = harness.put("confirms")
    await until(lambda: log)
    assert harness.state(entry) == "SUCCEEDED"
    (row,) = harness.master.finals
    assert (row.result, row.attempt) == (b'"done"', 1)
    harness.clock.now += 1.0
    await harness.bucket_worker.in_flight_writer.tick()
    assert not harness.master.of("persist"), "nothing is written over it"
    go.set()
    await harness.settled()
    assert len(harness.master.finals) == 1
    assert harness.bucket_worker.outcome_writer.refused == 0


@pytest.mark.parametrize("name", ["breaks_afterwards", "twice"])
async def test_what_was_confirmed_stands(harness: TransactionalHarness, name: str) -> None:
    (entry,) = harness.put(name)
    await harness.settled()
    await until(lambda: harness.bucket_worker.executor.running == 0)
    assert harness.state(entry) == "SUCCEEDED"
    assert not harness.master.attempts
    assert harness.bucket_worker.outcome_writer.refused == 0, "nothing else is even tried"
    assert all("confirmed already" in message for message in log)


@pytest.mark.parametrize(("name", "reason"), [("forgets", "unconfirmed"), ("too_large", "error"), ("usual", "error")])
async def test_without_a_confirmation_the_attempt_has_failed(
    harness: TransactionalHarness, name: str, reason: str
) -> None:
    (entry,) = harness.put(name)
    await harness.settled()
    assert harness.state(entry) == "FAILED"
    assert harness.error(entry).reason == reason


async def test_a_superseded_run_gets_a_conflict_and_records_nothing(harness: TransactionalHarness) -> None:
    entry = Entry(new_id(), 1, "confirming", b"{}")
    harness.master.rows[entry.id] = Row("HELD", 2)
    harness.submit(harness.bucket(), [entry])
    await harness.settled()
    assert log == ["Conflict"]
    assert harness.state(entry) == "HELD"
    assert harness.bucket_worker.outcome_writer.refused == 1


@pytest.mark.parametrize("step", [LOST, DOWN])
async def test_a_lost_answer_is_found_on_the_row(harness: TransactionalHarness, step: Any) -> None:
    harness.source.script = [step]
    (entry,) = harness.put("confirming")
    await harness.settled()
    assert harness.state(entry) == ("SUCCEEDED" if step is LOST else "FAILED")
    assert log == ([] if step is LOST else ["OutcomeUnknown"])


async def test_while_the_master_is_away_a_confirmation_waits(harness: TransactionalHarness) -> None:
    harness.source.down = True
    (entry,) = harness.put("confirming")
    await until(lambda: harness.bucket_worker.executor.running == 1)
    await turns()
    assert (harness.state(entry), log) == ("none", [])
    harness.source.down = False
    await harness.settled()
    assert (harness.state(entry), log) == ("SUCCEEDED", [])


async def test_left_to_others_it_waits_in_the_master_with_all_that_follows(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("leaves_it")
    await until(lambda: log)
    assert harness.state(entry) == "PROCESSING", "the row is there before a confirmation is possible"
    assert log[0].startswith(f"{text(entry.id)}:1:")
    go.set()
    await harness.settled()
    ((row, within, pause, error),) = harness.master.of("await_confirmation")
    assert (harness.state(entry), row.attempt, within, pause, error) == ("WAITING", 1, 60.0, 7.0, None)
    assert not harness.master.finals


async def test_after_its_last_attempt_the_error_is_ready(harness: TransactionalHarness) -> None:
    entry = Entry(new_id(), 1, "leaves_it", b"{}", attempt=1)
    go.set()
    harness.submit(harness.bucket(), [entry])
    await harness.settled()
    ((_, _, _, error),) = harness.master.of("await_confirmation")
    assert decode_error(error).reason == "unconfirmed"


async def test_confirmed_from_outside_while_it_runs_it_is_done(harness: TransactionalHarness) -> None:
    (entry,) = harness.put("leaves_it")
    await until(lambda: log)
    harness.master.rows[entry.id].state = "SUCCEEDED"
    go.set()
    await harness.settled()
    assert harness.state(entry) == "SUCCEEDED"
    assert harness.bucket_worker.outcome_writer.refused == 0


async def test_a_bucket_lost_after_the_confirmation_changes_nothing(harness: TransactionalHarness) -> None:
    bucket = harness.bucket()
    entry = Entry(new_id(), 1, "confirms", b"{}")
    harness.submit(bucket, [entry])
    await until(lambda: log)
    harness.bucket_worker.forget(bucket.fence.bucket_id, "on request of the test")
    go.set()
    await until(lambda: harness.bucket_worker.executor.running == 0)
    await turns()
    assert (harness.state(entry), len(harness.master.finals)) == ("SUCCEEDED", 1)


async def test_a_time_out_after_the_confirmation_ends_the_handler_and_not_the_job(
    harness: TransactionalHarness,
) -> None:
    (entry,) = harness.put("confirms")
    await until(lambda: log)
    harness.clock.now += 101.0
    harness.trust()
    await until(lambda: harness.bucket_worker.executor.running == 0)
    await harness.settled()
    assert (harness.state(entry), harness.master.attempts) == ("SUCCEEDED", [])


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (AttemptResult(kind=ResultKind.OK, result=b"1", conclusion=Conclusion.COMMITTED), "SUCCEEDED"),
        (AttemptResult(kind=ResultKind.OK), "FAILED"),
        (AttemptResult(kind=ResultKind.CRASHED, error=ErrorInfo(type="X", message="x", reason="crashed")), "FAILED"),
    ],
)
async def test_in_a_worker_process_it_is_the_same(
    harness: TransactionalHarness, result: AttemptResult, state: str
) -> None:
    (entry,) = harness.put("process")
    await until(lambda: entry.id in harness.pool.orders)
    live = harness.bucket_worker.job_table.get(entry.id)
    assert live is not None
    if state == "SUCCEEDED":
        harness.master._conclude(harness.bucket_worker.outcome_builder.success_row(live, 0.0))
    harness.pool.orders[entry.id][0].set_result(result)
    await harness.settled()
    assert harness.state(entry) == state
    assert len(harness.master.finals) == 1


def test_what_goes_together_is_checked_where_it_is_declared() -> None:
    assert Handlers().add(leaves_it, confirm="explicit", confirm_within=5).options.start is StartRule.FENCED

    def plain() -> None: ...

    for function, options, message in (
        (forgets, {"confirm_within": 5}, "goes with confirm 'explicit'"),
        (forgets, {"confirm": "explicit", "transactional": True}, "exclude each other"),
        (forgets, {"confirm": "explicit", "confirm_within": 5, "start": "lease"}, "must find the job's row"),
        (plain, {"confirm": "explicit"}, "needs an 'async def'"),
        (forgets, {"confirm": "maybe"}, "'maybe'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Handlers().add(function, **options)
