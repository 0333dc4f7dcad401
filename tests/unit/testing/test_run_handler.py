"""One attempt of a handler without servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobmaster import (
    Cancel,
    ConfigError,
    Handlers,
    InputError,
    InvalidArguments,
    JobContext,
    JobFailed,
    Retry,
    UnknownHandler,
    call,
)
from jobmaster.testing import job_context, run_handler, run_handler_async
from tests.unit.testing import app
from tests.unit.testing.connection import RecordedConnection


def test_a_handler_of_each_mode_returns_its_result() -> None:
    assert run_handler(call(app.send_mail, "ann")) == "welcome, ann"
    assert run_handler(call(app.numbers, 1, more=[2]), attempt=2) == [1, 2, 2]
    assert run_handler(call(app.double, 4)) == 8


async def test_in_a_coroutine_the_other_form_is_awaited() -> None:
    assert await run_handler_async(call(app.send_mail, "ann")) == "welcome, ann"
    with pytest.raises(InputError, match="run_handler_async"):
        run_handler(call(app.send_mail, "ann"))


def test_arguments_are_checked_and_travel_as_json() -> None:
    with pytest.raises(InvalidArguments, match="expected int, got str"):
        run_handler(call(app.double, "4"))  # type: ignore[call-overload]  # the point of the test
    with pytest.raises(InvalidArguments, match="missing argument 'first'"):
        run_handler(call("tests.unit.testing.app.numbers"), handlers=app.handlers)
    # A set is sent as a list, and a handler without a type for it gets a list.
    local = Handlers()

    @local.job
    async def kind(value: Any) -> str:
        return type(value).__name__

    assert run_handler(call(kind, {1}), handlers=local) == "list"


def test_the_error_of_the_handler_is_raised() -> None:
    with pytest.raises(LookupError, match="no such person"):
        run_handler(call(app.send_mail, "nobody"))
    with pytest.raises(Retry):
        run_handler(call(app.third_time), attempt=2)
    assert run_handler(call(app.third_time), attempt=3) == 3


def test_a_failure_that_is_not_the_handler_s_is_named() -> None:
    with pytest.raises(JobFailed, match=r"its timeout is 0\.1 s") as failed:
        run_handler(call(app.slow))
    assert failed.value.info is not None
    assert failed.value.info.reason == "timeout"
    with pytest.raises(JobFailed, match="not confirmed"):
        run_handler(call(app.confirmed, False))
    local = Handlers()

    @local.job
    async def wrong() -> int:
        return "text"  # type: ignore[return-value]  # the point of the test

    with pytest.raises(JobFailed, match="does not fit the return annotation"):
        run_handler(call(wrong), handlers=local)


def test_options_reach_the_context() -> None:
    local = Handlers()

    @local.job(lane="mail")
    async def look(ctx: JobContext) -> list[Any]:
        return [ctx.lane, ctx.priority.label, list(ctx.tags), ctx.metadata, ctx.last_attempt, ctx.remaining_seconds < 5]

    found = run_handler(
        call(look),
        handlers=local,
        priority="low",
        tags=["a"],
        metadata={"b": "c"},
        max_attempts=2,
        attempt=2,
        timeout=4,
    )
    assert found == ["mail", "low", ["a"], {"b": "c"}, True, True]


async def test_a_transaction_is_committed_with_a_success_and_rolled_back_with_a_failure() -> None:
    connection = RecordedConnection()
    assert await run_handler_async(call(app.pay, 5), connection=connection) == 5
    assert connection.log == ["start", ("INSERT", 5), "commit"]
    connection = RecordedConnection(fails=True)
    with pytest.raises(OSError, match="the server refused"):
        await run_handler_async(call(app.pay, 5), connection=connection)
    assert connection.log == ["start", "rollback"]
    with pytest.raises(InputError, match="needs a connection"):
        await run_handler_async(call(app.pay, 5))


def test_an_explicit_confirmation_is_the_result() -> None:
    assert run_handler(call(app.confirmed)) == "done"


def test_a_handler_that_is_not_declared_is_named() -> None:
    async def nowhere() -> None: ...

    with pytest.raises(UnknownHandler, match="nowhere"):
        run_handler(call(nowhere))
    with pytest.raises(UnknownHandler, match="handlers="):
        run_handler(call("app.resize"))
    with pytest.raises(InputError, match="takes a call"):
        run_handler(app.send_mail)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(InputError, match="at least 1"):
        run_handler(call(app.send_mail, "ann"), attempt=0)


async def test_a_context_has_what_the_test_gives_it() -> None:
    context = job_context(attempt=3, max_attempts=3, tags=["a"], priority="low")
    assert (context.attempt, context.last_attempt, context.tags, context.priority.label) == (3, True, ("a",), "low")
    connection = RecordedConnection()
    assert await app.pay(job_context(connection=connection), 5) == 5
    assert connection.log == ["start", ("INSERT", 5), "commit"]
    with pytest.raises(InputError, match="attempt"):
        job_context(atempt=3)
    with pytest.raises(Cancel):
        job_context(cancelled=True).check()


def test_the_lifespan_of_the_registry_is_entered_and_left() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        log.append("entered")
        yield "pool"
        log.append("left")

    local = Handlers(lifespan=lifespan)

    @local.around
    async def noted(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
        log.append(f"around {ctx.resources}")
        return await run()

    @local.job(mode="process")
    def use(ctx: JobContext) -> str:
        return f"{ctx.resources} used"

    assert run_handler(call(use), handlers=local) == "pool used"
    assert log == ["entered", "around pool", "left"]
    log.clear()
    assert run_handler(call(use), handlers=local, resources="fake") == "fake used"
    assert log == ["around fake"]


def test_a_lifespan_that_fails_is_named() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no such host")
        yield

    local = Handlers(lifespan=broken)

    @local.job
    async def use(ctx: JobContext) -> None: ...

    with pytest.raises(ConfigError, match=r"broken failed: OSError: no such host"):
        run_handler(call(use), handlers=local)
