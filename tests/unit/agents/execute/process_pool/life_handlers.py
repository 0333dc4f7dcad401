"""Handlers with a lifespan, middleware and logs, for worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jobmaster import Handlers, JobContext, current_job

log = logging.getLogger("shop")
place: ContextVar[str] = ContextVar("place", default="nowhere")


class Resources:
    def __init__(self) -> None:
        self.ticks = 0


async def tick(resources: Resources) -> None:
    while True:
        resources.ticks += 1
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:
    if os.environ.get("LIFE_FAILS"):
        raise OSError("no route")
    place.set("lifespan")
    made = Resources()
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(tick(made))
        yield made
        ticking.cancel()
    if path := os.environ.get("LIFE_LEFT"):
        Path(path).write_text("left")


handlers = Handlers(lifespan=lifespan)


@handlers.around
async def around(ctx: JobContext, run: Callable[[], Awaitable[object]]) -> object:
    try:
        return await run()
    finally:
        log.info("ended %s", ctx.handler)


@handlers.job(name="iso.async", mode="process")
async def in_loop(ctx: JobContext[Resources]) -> list[Any]:
    before = ctx.resources.ticks
    while ctx.resources.ticks < before + 3:  # noqa: ASYNC110 - the task of the lifespan goes on
        await asyncio.sleep(0.001)
    now = current_job()
    assert now is ctx
    return [os.getpid(), place.get(), ctx.attempt]


@handlers.job(name="iso.plain", mode="process")
def plain() -> list[Any]:
    now = current_job()
    assert now is not None
    log.info("two\nlines of %s", now.handler, extra={"order": 7, "paid": True})
    log.debug("not logged")
    print("printed")  # noqa: T201
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("trouble")
    return [os.getpid(), place.get(), now.attempt]


@handlers.job(name="iso.sleeps", mode="process")
def sleeps(began: str) -> None:
    Path(began).touch()
    time.sleep(600)
