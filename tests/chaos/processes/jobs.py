"""What the agents run under chaos. Every start is written down before anything else; the result is the token of the run,
so that a row whose result belongs to another assignment is seen.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from pathlib import Path

from jobmaster.handlers import Fail, Handlers, JobContext, Snooze
from tests.chaos.processes.witness import VARIABLE, Phase, WitnessLine, WitnessWriter

handlers = Handlers()

_FIRST_FAILURE = "the first attempt of a flaky job"


@cache
def _witness_writer(pid: int) -> WitnessWriter:
    return WitnessWriter(Path(os.environ[VARIABLE]), "handler")


def began(ctx: JobContext, value: int, handler: str) -> None:
    _write(ctx, value, handler, Phase.BEGAN)


def ended(ctx: JobContext, value: int, handler: str) -> None:
    _write(ctx, value, handler, Phase.ENDED)


def _write(ctx: JobContext, value: int, handler: str, phase: Phase) -> None:
    _witness_writer(os.getpid()).write(
        WitnessLine(
            phase=phase,
            job=ctx.job_id.hex,
            value=value,
            token=ctx.token,
            attempt=ctx.attempt,
            rescues=ctx.rescues,
            handler=handler,
        )
    )


@handlers.job(name="chaos.quick", max_attempts=20, backoff=0.2, backoff_max=2)
async def quick(ctx: JobContext, value: int) -> int:
    began(ctx, value, "chaos.quick")
    return ctx.token


@handlers.job(name="chaos.slow", max_attempts=20, backoff=0.2, backoff_max=2)
async def slow(ctx: JobContext, value: int, seconds: float) -> int:
    began(ctx, value, "chaos.slow")
    await asyncio.sleep(seconds)
    ended(ctx, value, "chaos.slow")
    return ctx.token


@handlers.job(name="chaos.threaded", mode="thread", max_attempts=20, backoff=0.2, backoff_max=2)
def threaded(ctx: JobContext, value: int) -> int:
    began(ctx, value, "chaos.threaded")
    time.sleep(0.01)
    ended(ctx, value, "chaos.threaded")
    return ctx.token


@handlers.job(name="chaos.fenced", start="fenced", max_attempts=20, backoff=0.2, backoff_max=2)
async def fenced(ctx: JobContext, value: int) -> int:
    began(ctx, value, "chaos.fenced")
    await asyncio.sleep(0.02)
    ended(ctx, value, "chaos.fenced")
    return ctx.token


@handlers.job(name="chaos.flaky", max_attempts=20, backoff=0.2, backoff_max=2)
async def flaky(ctx: JobContext, value: int) -> int:
    began(ctx, value, "chaos.flaky")
    if ctx.attempt == 1:
        raise RuntimeError(_FIRST_FAILURE)
    return ctx.token


@handlers.job(name="chaos.put_off", max_attempts=20, backoff=0.2, backoff_max=2)
async def put_off(ctx: JobContext, value: int) -> int:
    """Puts itself off twice, for a moment and for longer."""
    began(ctx, value, "chaos.put_off")
    if ctx.snoozes < 2:
        raise Snooze(after=(0.05, 1.5)[ctx.snoozes])
    return ctx.token


@handlers.job(name="chaos.failing", max_attempts=20, backoff=0.2, backoff_max=2)
async def failing(ctx: JobContext, value: int) -> None:
    began(ctx, value, "chaos.failing")
    raise Fail("as it was told")


@handlers.job(name="chaos.given_up", max_attempts=20, backoff=0.2, backoff_max=2, give_up_on=LookupError)
async def given_up(ctx: JobContext, value: int) -> None:
    began(ctx, value, "chaos.given_up")
    raise KeyError(value)


@handlers.job(name="chaos.long", timeout=600, max_attempts=20, backoff=0.2, backoff_max=2)
async def long(ctx: JobContext, value: int, seconds: float) -> int:
    """As long as a graceful exit waits, and longer than a lease."""
    began(ctx, value, "chaos.long")
    await asyncio.sleep(seconds)
    ended(ctx, value, "chaos.long")
    return ctx.token


@handlers.job(name="chaos.fat", max_attempts=20, backoff=0.2, backoff_max=2)
async def fat(ctx: JobContext, value: int, text: str) -> tuple[int, str]:
    """Arguments and a result of many KiB."""
    began(ctx, value, "chaos.fat")
    return ctx.token, text


@handlers.job(name="chaos.once", mode="thread", delivery="at_most_once")
def once(ctx: JobContext, value: int) -> int:
    """At most once, with far fewer threads than slots."""
    began(ctx, value, "chaos.once")
    time.sleep(0.1)
    ended(ctx, value, "chaos.once")
    return ctx.token


@handlers.job(name="chaos.once_isolated", mode="process", delivery="at_most_once")
def once_isolated(ctx: JobContext, value: int) -> int:
    """At most once, in a worker process, of which there are fewer still."""
    began(ctx, value, "chaos.once_isolated")
    time.sleep(0.1)
    ended(ctx, value, "chaos.once_isolated")
    return ctx.token
