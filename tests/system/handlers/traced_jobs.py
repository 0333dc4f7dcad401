"""Handlers with spans of their own, and one that submits a job."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from opentelemetry import trace

import jobmaster
from jobmaster.handlers import Handlers, Retry

handlers = Handlers()
tracer = trace.get_tracer("tests")
log = logging.getLogger("tests.traced")


@handlers.job(name="child")
async def child() -> None:
    return None


@handlers.job(name="parent")
async def parent(config: str) -> None:
    log.info("in the parent")
    with tracer.start_as_current_span("inner"):
        async with jobmaster.connect(config, handlers=handlers, env={}) as cluster:
            await cluster.submit(child)


@handlers.job(name="threaded", mode="thread")
def threaded() -> None:
    with tracer.start_as_current_span("inner of the thread"):
        log.info("in the thread")


@handlers.job(name="isolated", mode="process")
def isolated() -> None:
    with tracer.start_as_current_span("inner of the process"):
        log.info("in the process")


@handlers.job(name="sends", transactional=True)
async def sends(ctx: jobmaster.JobContext) -> None:
    async with ctx.transaction():
        await ctx.outbox.send("webhooks", {"order": 17})


@handlers.job(name="sends_isolated", transactional=True, mode="process")
async def sends_isolated(ctx: jobmaster.JobContext) -> None:
    async with ctx.transaction():
        await ctx.outbox.send("webhooks", {"order": 18})


@handlers.outbox("webhooks")
async def webhooks(key: str, payload: dict[str, int]) -> None: ...


@handlers.job(name="second_time", backoff=0.01, max_attempts=2)
async def second_time(ctx: jobmaster.JobContext) -> None:
    if ctx.attempt == 1:
        raise Retry(0.01, "once more")


@handlers.job(name="too_long", timeout=0.1, max_attempts=1)
async def too_long() -> None:
    await asyncio.sleep(60)


@handlers.job(name="fails", max_attempts=1)
async def fails(secret: str) -> None:
    raise ValueError(f"a message with {secret}")


@handlers.job(name="until_file", timeout=600)
async def until_file(path: str, gate: str) -> None:
    Path(path).touch()
    while not Path(gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.02)
