"""Handlers with rules for their failures, of every kind of handler."""

from __future__ import annotations

import time
from pathlib import Path

from jobmaster import Fail, Handlers, JobContext, Snooze

handlers = Handlers()
TIMES = 2
"""Snoozes before a handler goes on."""


def put_off(ctx: JobContext, after: float) -> list[int]:
    """Snooze twice, then return the number of snoozes and of this attempt."""
    if ctx.snoozes < TIMES:
        raise Snooze(after, "not ready yet")
    return [ctx.snoozes, ctx.attempt]


@handlers.job(name="off_async")
async def off_async(ctx: JobContext, after: float) -> list[int]:
    return put_off(ctx, after)


@handlers.job(name="off_thread", mode="thread")
def off_thread(ctx: JobContext, after: float) -> list[int]:
    return put_off(ctx, after)


@handlers.job(name="off_process", mode="process")
def off_process(ctx: JobContext, after: float) -> list[int]:
    return put_off(ctx, after)


@handlers.job(name="off_once", delivery="at_most_once")
async def off_once(ctx: JobContext, after: float) -> list[int]:
    return put_off(ctx, after)


@handlers.job(name="off_transactional", transactional=True)
async def off_transactional(ctx: JobContext, after: float) -> list[int]:
    async with ctx.transaction() as connection:
        await connection.execute("UPDATE public.counter SET n = n + 1")
        return put_off(ctx, after)


@handlers.job(name="off_for_ever")
async def off_for_ever(ctx: JobContext) -> None:
    raise Snooze(0.01, "still not")


class OnlyInTheWorker(Exception):
    """The rules see its class where it is raised."""


@handlers.job(name="ruled", mode="process", give_up_on=OnlyInTheWorker, delays=[0.01, 0.01])
def ruled(text: str) -> None:
    raise OnlyInTheWorker(text) if text == "hopeless" else ConnectionError(text)


@handlers.job(name="fails_for_good", mode="thread")
def fails_for_good() -> None:
    raise Fail("no such account")


def breaks(ctx: JobContext, error: Exception) -> float:
    raise ZeroDivisionError("in the policy")


@handlers.job(name="odd_policy", retry=breaks, max_attempts=2, backoff=0.01)
async def odd_policy() -> None:
    raise OSError("no")


@handlers.job(name="slow", mode="thread", warn_after=0.1, timeout=600)
def slow(ctx: JobContext, gate: str) -> bool:
    """Until the file is there: the agent looks for overdue runs, too."""
    while not (ctx.overdue and Path(gate).exists()):
        time.sleep(0.01)
    return ctx.overdue
