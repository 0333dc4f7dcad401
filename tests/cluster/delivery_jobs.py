"""Handlers with guarantees of their own. What they did is written to files, independent of both stores."""

from __future__ import annotations

import asyncio

from jobmaster.handlers import Handlers, JobContext
from tests.cluster.jobs import witness

handlers = Handlers()


@handlers.job(name="once", delivery="at_most_once", timeout=60)
async def once(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "began")
    await asyncio.sleep(0.15)
    witness(ctx, path, "ended")
