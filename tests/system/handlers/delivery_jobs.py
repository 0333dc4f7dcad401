"""Handlers with guarantees of their own. What they did is written to files, independent of both stores."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from jobmaster.handlers import Handlers, JobContext
from tests.system.jobs import witness

handlers = Handlers()


@handlers.job(name="once", delivery="at_most_once", timeout=60)
async def once(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "began")
    await asyncio.sleep(0.15)
    witness(ctx, path, "ended")


def wait_open(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.02)


@handlers.job(name="once_in_thread", delivery="at_most_once", timeout=600)
def once_in_thread(ctx: JobContext, path: str, gate: str) -> None:
    witness(ctx, path, "began")
    wait_open(gate)


@handlers.job(name="once_in_process", mode="process", delivery="at_most_once", timeout=600)
def once_in_process(ctx: JobContext, path: str, gate: str) -> None:
    witness(ctx, path, "began")
    wait_open(gate)


@handlers.job(name="once_confirmed", confirm="explicit", delivery="at_most_once", timeout=600)
async def once_confirmed(ctx: JobContext, path: str, gate: str) -> None:
    witness(ctx, path, "began")
    while not Path(gate).exists():  # noqa: ASYNC110 - as in ``adds_slowly``
        await asyncio.sleep(0.02)
    await ctx.confirm()


@handlers.job(name="adds", transactional=True, timeout=60)
async def adds(ctx: JobContext, counter: int) -> None:
    """Not idempotent: run twice, it counts twice, unless its transaction is the outcome's."""
    async with ctx.transaction() as connection:
        await connection.execute("UPDATE public.counter SET n = n + 1 WHERE id = $1", counter)
    await asyncio.sleep(0.02)


@handlers.job(name="adds_isolated", transactional=True, mode="process", timeout=60)
async def adds_isolated(ctx: JobContext, counter: int) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("UPDATE public.counter SET n = n + 1 WHERE id = $1", counter)


@handlers.job(name="adds_slowly", transactional=True, timeout=600)
async def adds_slowly(ctx: JobContext, counter: int, path: str, gate: str) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("UPDATE public.counter SET n = n + 1 WHERE id = $1", counter)
        witness(ctx, path, "wrote")
        while not Path(gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
            await asyncio.sleep(0.02)


@handlers.job(name="hands_on", confirm="explicit", confirm_within=300, timeout=60)
async def hands_on(ctx: JobContext, path: str) -> None:
    """Writes its confirmation to a file for another process."""
    witness(ctx, path, ctx.confirmation)


@handlers.job(name="says_done", confirm="explicit", mode="process", timeout=60)
async def says_done(ctx: JobContext) -> None:
    await ctx.confirm({"by": "worker"})
    raise RuntimeError("after it was done")
