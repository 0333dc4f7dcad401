"""Handlers that need what only some agents provide, and a resource that only those have."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobmaster.handlers import Handlers

OPENED = "the card is open"


@asynccontextmanager
async def card() -> AsyncIterator[None]:
    sys.stdout.write(f"{OPENED}\n")
    sys.stdout.flush()
    yield


handlers = Handlers(lifespan=card)
plain = Handlers()


@handlers.job(name="cards.render", needs="card", max_attempts=1)
async def render() -> int:
    return os.getpid()


@handlers.job(name="cards.encode", needs=["card"], mode="process", max_attempts=1)
def encode() -> int:
    return os.getppid()


@plain.job(name="cards.plain", mode="process", max_attempts=1)
def work() -> str:
    return "done"
