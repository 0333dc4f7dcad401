"""Handlers with lifespans of several kinds, for agents: ``tests.system.handlers.life_jobs:handlers`` and its neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from jobmaster import Handlers, JobContext

log = logging.getLogger("shop.life")


class Pool:
    """What a lifespan makes."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.group = group
        self.open = True


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[Pool]:
    async with asyncio.TaskGroup() as group:
        pool = Pool(group)
        log.info("lifespan began")
        yield pool
        pool.open = False
        log.info("lifespan ended")


@contextlib.asynccontextmanager
async def lingering_lifespan() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(8.0)
    log.info("lifespan ended at last")


@contextlib.asynccontextmanager
async def failing_lifespan() -> AsyncIterator[None]:
    raise OSError("no route to the database")
    yield


@contextlib.asynccontextmanager
async def hanging_lifespan() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


@contextlib.asynccontextmanager
async def blocking_lifespan() -> AsyncIterator[None]:
    time.sleep(600)
    yield


@contextlib.asynccontextmanager
async def blocking_end_lifespan() -> AsyncIterator[None]:
    yield
    time.sleep(600)


handlers = Handlers(lifespan=lifespan)
blocking_end = Handlers(lifespan=blocking_end_lifespan)
failing = Handlers(lifespan=failing_lifespan)
hanging = Handlers(lifespan=hanging_lifespan)
blocking = Handlers(lifespan=blocking_lifespan)
lingering = Handlers(lifespan=lingering_lifespan)


@handlers.job(name="life.async")
async def in_loop(ctx: JobContext[Pool]) -> bool:
    log.info("in a slot", extra={"customer": 7})
    return ctx.resources.open


@handlers.job(name="life.thread")
def in_thread(ctx: JobContext[Pool]) -> bool:
    log.info("in a thread")
    return ctx.resources.open


@handlers.job(name="life.process", mode="process")
def in_process(ctx: JobContext[Pool]) -> bool:
    log.info("in a process")
    return ctx.resources.open


@handlers.job(name="life.slow")
async def slow(ctx: JobContext[Pool]) -> bool:
    log.info("slow began")
    await asyncio.sleep(1.0)
    log.info("slow ended")
    return ctx.resources.open


async def breaks() -> None:
    raise RuntimeError("the connection was lost")


@handlers.job(name="life.breaks")
async def breaks_the_lifespan(ctx: JobContext[Pool]) -> None:
    ctx.resources.group.create_task(breaks())


@failing.job(name="life.never")
@hanging.job(name="life.never")
@blocking.job(name="life.never")
@blocking_end.job(name="life.never")
@lingering.job(name="life.never")
async def never() -> None:
    log.info("it ran")
