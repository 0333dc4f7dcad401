"""Handlers of the contract between jobs in memory and a real cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from jobmaster import Cancel, Fail, Handlers, JobContext, Retry, Snooze, current_job

handlers = Handlers()
_log = logging.getLogger("contract")


@handlers.job(priority="high")
async def add(first: int, second: int = 2) -> int:
    """Two numbers."""
    return first + second


@handlers.job
def in_thread(values: list[int]) -> dict[str, int]:
    """Runs in a thread."""
    return {"sum": sum(values)}


@handlers.job(mode="process")
def in_process(text: str) -> str:
    """Runs in a worker process of an agent."""
    return text.upper()


@handlers.job
async def reports(ctx: JobContext) -> None:
    """Reports how far it is."""
    ctx.progress(1)
    ctx.progress(3, 4, "the third")


@handlers.job
def reports_in_thread(ctx: JobContext) -> None:
    ctx.progress(3, 4, "the third")


@handlers.job(mode="process")
def reports_in_process(ctx: JobContext) -> None:
    ctx.progress(1)
    ctx.progress(3, 4, "the third")


def _write_lines(ctx: JobContext) -> None:
    ctx.log("first")
    for number in range(2, 7):
        _log.warning("number %d", number)
    ctx.log("last\0 one", "error")


@handlers.job(keep_logs=4)
async def writes_lines(ctx: JobContext) -> None:
    """Writes more lines than are kept."""
    _write_lines(ctx)


@handlers.job(keep_logs=4)
def writes_lines_in_thread(ctx: JobContext) -> None:
    _write_lines(ctx)


@handlers.job(keep_logs=4, mode="process")
def writes_lines_in_process(ctx: JobContext) -> None:
    _write_lines(ctx)


@handlers.job(max_attempts=2, backoff=0.01)
async def writes_in_each_attempt(ctx: JobContext) -> None:
    """Without the option: what it logs itself, and no lines of ``logging``."""
    _log.warning("not kept")
    ctx.log(f"attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise LookupError


@handlers.job
async def context(ctx: JobContext) -> list[Any]:
    """What a handler learns about its run."""
    return [ctx.handler, ctx.lane, ctx.priority.label, ctx.attempt, ctx.max_attempts, list(ctx.tags), ctx.metadata]


@handlers.job(max_attempts=3, backoff=0.01, backoff_jitter=0)
async def until_attempt(ctx: JobContext, wanted: int) -> int:
    """Fails before an attempt."""
    if ctx.attempt < wanted:
        raise LookupError(f"attempt {ctx.attempt}")
    return ctx.attempt


@handlers.job(max_attempts=2, backoff=0.01)
def in_thread_until(ctx: JobContext, wanted: int) -> int:
    """The same in a thread."""
    if ctx.attempt < wanted:
        raise LookupError(f"attempt {ctx.attempt}")
    return ctx.attempt


@handlers.job(max_attempts=5)
async def decide(ctx: JobContext, decision: str) -> str:
    """Decides its own outcome."""
    if decision == "cancel":
        raise Cancel("not needed")
    if decision == "fail":
        raise Fail("no use")
    if decision == "retry" and ctx.attempt == 1:
        raise Retry(after=0.01, reason="again")
    if decision == "snooze" and ctx.snoozes < 2:
        raise Snooze(0.01, "later")
    return f"attempt {ctx.attempt}"


@handlers.job(timeout=0.1, max_attempts=1)
async def slow() -> None:
    """Takes longer than it may."""
    await asyncio.sleep(60)


@handlers.job(max_attempts=1)
async def wrong_result() -> int:
    """Returns what its annotation excludes."""
    return "text"  # type: ignore[return-value]


@handlers.job(transactional=True, max_attempts=1)
async def pay(ctx: JobContext, amount: int) -> int:
    """Uses its transaction."""
    async with ctx.transaction() as connection:
        await connection.execute("SELECT $1::int", amount)
    if amount < 0:
        raise ValueError("negative")
    return amount


@handlers.job(confirm="explicit", max_attempts=1)
async def confirmed(ctx: JobContext, result: str | None = None) -> None:
    """Is done when it says so."""
    if result is not None:
        await ctx.confirm(result)


@handlers.job(delivery="at_most_once")
async def once() -> None:
    """Has one attempt."""
    raise LookupError("the only attempt")


@handlers.job
async def steady(number: int) -> int:
    """Takes a moment."""
    await asyncio.sleep(0.1)
    return number


# ---------------------------------------------------------------- a registry with a lifespan

set_by_lifespan: ContextVar[str] = ContextVar("set_by_lifespan", default="")


@asynccontextmanager
async def lifespan() -> AsyncIterator[str]:
    """Resources, and a context variable."""
    set_by_lifespan.set("variable")
    yield "resources"


with_lifespan = Handlers(lifespan=lifespan)


@with_lifespan.around
async def marked(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
    """Middleware that changes the result."""
    return [*_list(await run()), f"around {ctx.handler.rpartition('.')[2]}"]


def _list(value: Any) -> list[Any]:
    return list(value)


@with_lifespan.job
async def surrounded(ctx: JobContext[str]) -> list[str]:
    """On the loop."""
    job = current_job()
    return [ctx.resources, set_by_lifespan.get(), str(job is not None and job.job_id == ctx.job_id)]


@with_lifespan.job
def surrounded_thread(ctx: JobContext[str]) -> list[str]:
    """In a thread."""
    job = current_job()
    return [ctx.resources, set_by_lifespan.get(), str(job is not None and job.job_id == ctx.job_id)]


@with_lifespan.job(mode="process")
def surrounded_process(ctx: JobContext[str]) -> list[str]:
    """In a worker process of an agent."""
    job = current_job()
    return [ctx.resources, set_by_lifespan.get(), str(job is not None and job.job_id == ctx.job_id)]
