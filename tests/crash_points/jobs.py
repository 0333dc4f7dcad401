"""What the agents under fault run. What a handler did is written to a file, independent of both stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

from jobmaster.handlers import Fail, Handlers, JobContext, Limit, Retry, Snooze
from jobmaster.handlers.flow.breaker import Breaker
from tests.system.jobs import witness

handlers = Handlers()

VICTIM = "victim"
"""Lane of the agent under fault."""
PREY = "prey"
"""Lane of an agent whose buckets the agent under fault has to rescue."""
SLOW_SECONDS = 0.35
"""Longer than ``persist_within`` in these clusters."""


@handlers.job(name="quick", lane=VICTIM)
async def quick(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")


@handlers.job(name="link", lane=VICTIM)
async def link(ctx: JobContext, path: str) -> None:
    """A step of a workflow."""
    witness(ctx, path, "ran")


@handlers.job(name="slow", lane=VICTIM)
async def slow(ctx: JobContext, path: str) -> None:
    await asyncio.sleep(SLOW_SECONDS)
    witness(ctx, path, "ran")


@handlers.job(name="fenced", lane=VICTIM, start="fenced")
async def fenced(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")


@handlers.job(name="limited", lane=VICTIM, limit=Limit("crash-points", 1))
async def limited(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")


@handlers.job(
    name="guarded", lane=VICTIM, max_attempts=50, backoff=0.1, backoff_max=0.1,
    breaker=Breaker("resource", min_calls=2, open_for=0.5, half_open=1),
)  # fmt: skip
async def guarded(ctx: JobContext, path: str, gate: str) -> None:
    """Its resource is down until the file is there."""
    witness(ctx, path, "ran")
    if not Path(gate).exists():
        raise ConnectionError("the resource is down")


@handlers.job(name="pays", lane=VICTIM, transactional=True)
async def pays(ctx: JobContext, path: str) -> None:
    """Its effect is a row in a table of its own, of which a second one would be no error."""
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO public.payment VALUES ($1)", ctx.job_id)
    witness(ctx, path, "ran")


@handlers.job(name="fails", lane=VICTIM, max_attempts=2, backoff=0.01)
async def fails(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
    raise RuntimeError("as asked")


@handlers.job(name="retries_here", lane=VICTIM, max_attempts=3)
async def retries_here(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
    if ctx.attempt < 3:
        raise Retry(after=0.02)


@handlers.job(name="retries_later", lane=VICTIM, max_attempts=2)
async def retries_later(ctx: JobContext, path: str) -> None:
    """Its second attempt is due beyond the transient threshold, so it waits for it in the master."""
    witness(ctx, path, "ran")
    if ctx.attempt < 2:
        raise Retry(after=0.4)


@handlers.job(name="snoozes_here", lane=VICTIM, max_attempts=2)
async def snoozes_here(ctx: JobContext, path: str) -> None:
    """Put off within the transient threshold, so it stays in its bucket."""
    witness(ctx, path, "ran")
    if ctx.snoozes < 2:
        raise Snooze(0.02)


@handlers.job(name="snoozes_later", lane=VICTIM, max_attempts=2)
async def snoozes_later(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
    if ctx.snoozes < 1:
        raise Snooze(0.4)


@handlers.job(name="fails_for_good", lane=VICTIM, max_attempts=5, backoff=0.01)
async def fails_for_good(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
    raise Fail("as asked")


@handlers.job(name="given_up", lane=VICTIM, max_attempts=5, backoff=0.01, give_up_on=LookupError)
async def given_up(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
    raise KeyError("as asked")


@handlers.job(name="late", lane=VICTIM, complete_time=0.3)
async def late(ctx: JobContext, path: str) -> None:
    """Its first run takes too long; its next one comes to the same agent, the only one of its lane."""
    witness(ctx, path, "ran")
    if ctx.token == 1:
        await asyncio.sleep(3600)


@handlers.job(name="endless", lane=VICTIM)
async def endless(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
    await asyncio.sleep(3600)


@handlers.job(name="until_gate", lane=PREY)
async def until_gate(ctx: JobContext, path: str, gate: str) -> None:
    witness(ctx, path, "began")
    while not Path(gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.02)
