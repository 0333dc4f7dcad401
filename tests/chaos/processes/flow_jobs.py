"""What the agents run of flow: jobs with limits (permits of one of them are lent), of ordering keys, that wait for signals,
of batches, workflows, unique keys and schedules. Registered beside the others, so that a program that imports this module has
them all.
"""

from __future__ import annotations

import asyncio

from jobmaster.handlers import Fail, JobContext, Limit
from tests.chaos.processes.jobs import began, ended, handlers

RUNNING_MAX = 4
TENANTS = 5
TENANT_RUNNING_MAX = 2
LENT_RUNNING_MAX = 12
"""More than there are agents: of fewer permits nothing is lent."""
LIMIT = Limit("chaos", RUNNING_MAX)
TENANT_LIMIT = Limit("chaos.tenant", TENANT_RUNNING_MAX, key=lambda arguments: str(arguments["value"] % TENANTS))
LIMITED, LENT, ORDERED, SIGNALLED = "chaos.limited", "chaos.lent", "chaos.ordered", "chaos.signalled"
CALLBACK, CHARGE, SHIP, DECLINED, REFUND = (
    "chaos.callback",
    "chaos.charge",
    "chaos.ship",
    "chaos.declined",
    "chaos.refund",
)
UNIQUE, FIRE = "chaos.unique", "chaos.fire"
_SECONDS = 0.05


@handlers.job(name=LIMITED, limit=[LIMIT, TENANT_LIMIT], max_attempts=20, backoff=0.2, backoff_max=2)
async def limited(ctx: JobContext, value: int) -> int:
    return await _for_a_while(ctx, value, LIMITED)


@handlers.job(name=LENT, limit=Limit("chaos.lent", LENT_RUNNING_MAX), max_attempts=20, backoff=0.2, backoff_max=2)
async def lent(ctx: JobContext, value: int) -> int:
    """With one limit and no rate: agents borrow its permits."""
    return await _for_a_while(ctx, value, LENT)


@handlers.job(name=ORDERED, max_attempts=20, backoff=0.2, backoff_max=2)
async def ordered(ctx: JobContext, value: int) -> int:
    return await _for_a_while(ctx, value, ORDERED)


async def _for_a_while(ctx: JobContext, value: int, handler: str) -> int:
    """What stops the run on the way is written down, too."""
    began(ctx, value, handler)
    try:
        await asyncio.sleep(_SECONDS)
    finally:
        ended(ctx, value, handler)
    return ctx.token


@handlers.job(name=SIGNALLED, max_attempts=20, backoff=0.2, backoff_max=2)
async def signalled(ctx: JobContext, value: int) -> int:
    """The last line is that of a job that has received its own signal."""
    began(ctx, value, SIGNALLED)
    if ctx.signal is not None and ctx.signal.payload == value:
        ended(ctx, value, SIGNALLED)
    return ctx.token


@handlers.job(name=CALLBACK, max_attempts=20, backoff=0.2, backoff_max=2)
async def callback(ctx: JobContext, value: int) -> int:
    began(ctx, value, CALLBACK)
    return ctx.token


@handlers.job(name=CHARGE, max_attempts=20, backoff=0.2, backoff_max=2)
async def charge(ctx: JobContext, value: int) -> int:
    began(ctx, value, CHARGE)
    return ctx.token


@handlers.job(name=SHIP, max_attempts=20, backoff=0.2, backoff_max=2)
async def ship(ctx: JobContext, value: int) -> int:
    began(ctx, value, SHIP)
    return ctx.token


@handlers.job(name=DECLINED, max_attempts=20, backoff=0.2, backoff_max=2)
async def declined(ctx: JobContext, value: int) -> None:
    began(ctx, value, DECLINED)
    raise Fail("as it was told")


@handlers.job(name=REFUND, max_attempts=20, backoff=0.2, backoff_max=2)
async def refund(ctx: JobContext, value: int) -> int:
    began(ctx, value, REFUND)
    return ctx.token


@handlers.job(name=UNIQUE, max_attempts=20, backoff=0.2, backoff_max=2)
async def unique(ctx: JobContext, value: int) -> int:
    began(ctx, value, UNIQUE)
    return ctx.token


@handlers.job(name=FIRE, max_attempts=20, backoff=0.2, backoff_max=2)
async def fire(ctx: JobContext, value: int) -> int:
    began(ctx, value, FIRE)
    return ctx.token
