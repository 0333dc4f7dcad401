"""Jobs for the tests of the pages."""

from __future__ import annotations

import asyncio
from pathlib import Path

from jobmaster.handlers import Handlers, JobContext

handlers = Handlers()


@handlers.job(name="mail.send")
async def send_mail(to: str) -> str:
    return f"sent to {to}"


@handlers.job(name="reports.nightly", max_attempts=2, backoff=0.01)
async def nightly_report(ctx: JobContext, day: str) -> None:
    ctx.log(f"reading {day}", "info")
    raise ValueError(f"no figures for {day}")


@handlers.job(name="hostile", max_attempts=1)
async def hostile(ctx: JobContext, text: str) -> str:
    for line in text.splitlines():
        ctx.log(line, "error")
    ctx.progress(1, 2, text[:100])
    raise RuntimeError(text)


@handlers.job(name="index.build", timeout=600)
async def build_index(ctx: JobContext, gate: str) -> None:
    """Runs until the gate file exists."""
    ctx.progress(40, 100, "reading files")
    while not Path(gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.05)
