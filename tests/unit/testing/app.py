"""An application as users write it: a registry, handlers, and code that submits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import jobmaster
from jobmaster import Handlers, JobContext, Retry, call

handlers = Handlers()


@handlers.job(priority="high", max_attempts=3, backoff=10, backoff_jitter=0)
async def send_mail(to: str, text: str = "welcome") -> str:
    """Tell somebody something."""
    if to == "nobody":
        raise LookupError("no such person")
    return f"{text}, {to}"


@handlers.job
def numbers(ctx: JobContext, first: int, more: list[int] | None = None) -> list[int]:
    """Runs in a thread."""
    return [first, *(more or []), ctx.attempt]


@handlers.job(mode="process")
def double(value: int) -> int:
    """Runs in a process."""
    return 2 * value


@handlers.job(max_attempts=3)
async def third_time(ctx: JobContext) -> int:
    """Asks for another attempt twice."""
    if ctx.attempt < 3:
        raise Retry(after=3600)
    return ctx.attempt


@handlers.job(timeout=0.1, max_attempts=1)
async def slow() -> None:
    """Takes longer than it may."""
    await asyncio.sleep(60)


@handlers.job(transactional=True)
async def pay(ctx: JobContext, amount: int) -> int:
    """Writes in a transaction."""
    async with ctx.transaction() as connection:
        await connection.execute("INSERT", amount)
    return amount


@handlers.job(confirm="explicit", max_attempts=1)
async def confirmed(ctx: JobContext, confirm: bool = True) -> None:
    """Is done when it says so."""
    if confirm:
        await ctx.confirm("done")


@handlers.job
async def parent(children: int) -> int:
    """Submits others and waits for them."""
    async with jobmaster.connect(handlers=handlers) as cluster:
        receipts = [await cluster.submit(call(double, number)) for number in range(children)]
        return sum([await receipt.result(timeout=10) for receipt in receipts])


async def sign_up(address: str, *, reminder: timedelta | None = None) -> None:
    """What a web handler does: it connects by itself."""
    async with jobmaster.connect(handlers=handlers) as cluster:
        await cluster.submit(call(send_mail, address))
        if reminder is not None:
            await cluster.submit(call(send_mail, address, "still there?"), after=reminder)


undeclared = Handlers()


@handlers.job(max_attempts=2)
async def ship(ctx: JobContext, order: int) -> object:
    """Waits for its payment before it runs."""
    if ctx.signal is not None and ctx.signal.payload == "again" and ctx.attempt == 1:
        raise Retry(after=1)
    return [order, None if ctx.signal is None else ctx.signal.payload]


@handlers.outbox("webhooks", priority="high", max_attempts=2)
async def webhooks(ctx: JobContext, key: str, payload: dict[str, int]) -> object:
    """Sends to the outside; its first attempt fails."""
    if ctx.attempt == 1:
        raise Retry(after=1)
    return [key, payload]


@handlers.job(transactional=True, max_attempts=1)
async def sells(ctx: JobContext, order: int, fails: bool = False) -> str:
    """Writes an order and tells the outside."""
    async with ctx.transaction() as connection:
        await connection.execute("INSERT", order)
        key = await ctx.outbox.send("webhooks", {"order": order}, key=f"order:{order}")
        await ctx.outbox.send("webhooks", {"order": order})
        if fails:
            raise LookupError("no such lamp")
    return key
