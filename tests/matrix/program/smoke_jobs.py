"""Handlers of the smoke program. The files that they write lie in the folder of the environment variable ``SMOKE_FOLDER``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from jobmaster import Handlers

handlers = Handlers()
FOLDER = Path(os.environ.get("SMOKE_FOLDER", "."))


@handlers.job(name="smoke.add")
async def add(one: int, other: int) -> int:
    return one + other


@handlers.job(name="smoke.short")
async def short(number: int) -> int:
    await asyncio.sleep(0.005)
    return number


@handlers.job(name="smoke.gated", timeout=600)
async def gated(gate: str) -> int:
    """Notes its process, and runs until the gate is there."""
    with (FOLDER / "gated").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not (FOLDER / gate).exists():  # noqa: ASYNC110 - the gate is a file, so that other processes can open it
        await asyncio.sleep(0.02)
    return os.getpid()


@handlers.every("1s", name="smoke.ticks")
@handlers.job(name="smoke.tick")
def tick() -> None:
    with (FOLDER / "ticks").open("a") as file:
        file.write("tick\n")
