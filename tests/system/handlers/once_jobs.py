"""Handlers with start-up actions, for real agents: ``tests.system.handlers.once_jobs:handlers`` and its neighbours."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from jobmaster import Handlers

PLACE = "ONCE_TEST_FOLDER"


def _folder() -> Path:
    return Path(os.environ[PLACE])


handlers = Handlers()
failing = Handlers()
hanging = Handlers()


@handlers.once("load-rates", version="3")
async def load() -> None:
    with (_folder() / "ran").open("a") as file:
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(0.3)


@failing.once("load-rates", version="3")
def load_from_file() -> None:
    (_folder() / "rates").read_text()


@hanging.once("load-rates", version="3")
async def hang() -> None:
    (_folder() / "hangs").touch()
    await asyncio.Event().wait()


@handlers.job(name="once.job")
@failing.job(name="once.job")
@hanging.job(name="once.job")
async def job() -> int:
    return 42
