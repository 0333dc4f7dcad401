"""The handlers of ``benchmarks.work``: each kind of work in each mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.support import plain_work
from benchmarks.support.plain_work import FAIL_PERCENT, RETRY_PERCENT, WAIT_SECONDS
from jobmaster.handlers import Fail, Handlers, JobContext, Retry

handlers = Handlers()
MODES = ("loop", "thread", "process")


def _context(ctx: JobContext, text: str = "") -> int:
    return len(ctx.job_id.hex) + ctx.attempt


def _tags(ctx: JobContext, text: str = "") -> int:
    return len(ctx.tags)


def _retry(ctx: JobContext, number: int, text: str = "") -> None:
    if ctx.attempt == 1 and number % 100 < RETRY_PERCENT:
        raise Retry(after=0.0, reason="again")


def _fail(number: int, text: str = "") -> None:
    if number % 100 < FAIL_PERCENT:
        raise Fail("not this one")


PLAIN: dict[str, Callable[..., Any]] = {
    **plain_work.PLAIN, "context": _context, "tags": _tags, "retry_5": _retry, "fail_1": _fail,
}  # fmt: skip
NUMBERED = ("retry_5", "fail_1")
"""Kinds whose jobs are told their number."""


def _on_loop(kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The coroutine of a kind; the parameters of the plain function."""
    if kind in ("context", "tags"):

        async def with_context(ctx: JobContext, text: str = "") -> int:
            return plain(ctx, text)  # type: ignore[no-any-return]

        return with_context
    if kind == "retry_5":

        async def retried(ctx: JobContext, number: int, text: str = "") -> None:
            _retry(ctx, number)

        return retried
    if kind == "fail_1":

        async def failed(number: int, text: str = "") -> None:
            _fail(number)

        return failed
    if kind == "wait_10ms":

        async def waits(text: str = "") -> None:
            await asyncio.sleep(WAIT_SECONDS)

        return waits

    if kind in plain_work.RESULTS:

        async def echoes(text: str = "") -> str:
            return text

        return echoes

    async def runs(text: str = "") -> None:
        plain(text)

    return runs


def _name(kind: str, mode: str) -> str:
    return f"work.{kind}.{mode}"


_OPTIONS: dict[str, Any] = {"max_attempts": 3}
for _kind, _plain in PLAIN.items():
    handlers.job(name=_name(_kind, "loop"), **_OPTIONS)(_on_loop(_kind, _plain))
    handlers.job(name=_name(_kind, "thread"), mode="thread", **_OPTIONS)(_plain)
    handlers.job(name=_name(_kind, "process"), mode="process", **_OPTIONS)(_plain)
