"""Handlers that need a resource, which is down while a file exists. What they did is written to files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from jobmaster import Breaker
from jobmaster.handlers import Handlers, JobContext
from tests.system.jobs import witness

handlers = Handlers()
RESOURCE = Breaker("resource", failures=0.5, window=60, min_calls=4, open_for=3, half_open=2, on=ConnectionError)


@handlers.job(name="needs_resource", breaker=RESOURCE, max_attempts=50, backoff=0.2, backoff_factor=1.0)
async def needs_resource(ctx: JobContext, path: str, down: str, seconds: float = 0.0) -> None:
    witness(ctx, path, f"began {time.time():.3f}")
    await asyncio.sleep(seconds)
    witness(ctx, path, f"ended {time.time():.3f}")
    if Path(down).exists():
        raise ConnectionError("the resource is down")


@handlers.job(name="needs_nothing")
async def needs_nothing(ctx: JobContext, path: str) -> None:
    witness(ctx, path, "ran")
