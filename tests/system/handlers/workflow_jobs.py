"""Handlers of workflows for real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from jobmaster.handlers import Fail, Handlers, JobContext
from tests.system.jobs import witness

handlers = Handlers()


class Payment(msgspec.Struct):
    number: int
    order: str


@handlers.job(name="charge")
async def charge(ctx: JobContext, path: str, order: str) -> Payment:
    witness(ctx, path, f"charge-{order}")
    return Payment(len(order), order)


@handlers.job(name="refund")
async def refund(ctx: JobContext, path: str, payment: Payment) -> None:
    witness(ctx, path, f"refund-{payment.order}-{payment.number}")


@handlers.job(name="pack")
async def pack(ctx: JobContext, path: str, order: str) -> str:
    witness(ctx, path, f"pack-{order}")
    return f"pack of {order}"


@handlers.job(name="unpack")
async def unpack(ctx: JobContext, path: str, what: str) -> None:
    witness(ctx, path, f"unpack-{what.replace(' ', '_')}")


@handlers.job(name="is_large")
async def is_large(number: int) -> bool:
    return number > 3


@handlers.job(name="send")
async def send(ctx: JobContext, path: str, label: str, parts: list[Any]) -> str:
    witness(ctx, path, f"send-{label}-{len(parts)}")
    return label


@handlers.job(name="send_unless", max_attempts=1)
async def send_unless(ctx: JobContext, path: str, gate: str) -> str:
    """Fails while the gate does not exist."""
    if not Path(gate).exists():
        raise Fail("the gate is closed")
    witness(ctx, path, "sent")
    return "sent"


@handlers.job(name="wait_for", timeout=60)
async def wait_for(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "began")
    await asyncio.Event().wait()


@handlers.job(name="pass_on")
async def pass_on(ctx: JobContext, path: str, value: int) -> int:
    witness(ctx, path, f"value-{value}")
    return value + 1
