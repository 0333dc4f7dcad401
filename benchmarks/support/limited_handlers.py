"""A handler with a limit, whose runs write when they began and ended."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from functools import cache
from pathlib import Path

from jobmaster.handlers import Handlers, Limit

RUNNING = 100
_RUN = struct.Struct("<qq")

handlers = Handlers()


@cache
def _file(directory: str) -> int:
    """The file of this process. Written without a buffer: an agent ends by ``os._exit``."""
    return os.open(Path(directory) / f"{os.getpid()}.runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@handlers.job(name="bench.limited", limit=Limit("bench", RUNNING))
async def limited(directory: str) -> None:
    """A job that takes one permit."""
    began = time.monotonic_ns()
    await asyncio.sleep(0)  # runs of one agent overlap
    os.write(_file(directory), _RUN.pack(began, time.monotonic_ns()))


@handlers.job(name="bench.unlimited")
async def unlimited(directory: str) -> None:
    """The same without a limit."""
    began = time.monotonic_ns()
    await asyncio.sleep(0)
    os.write(_file(directory), _RUN.pack(began, time.monotonic_ns()))


def runs(directory: Path) -> list[tuple[int, int]]:
    """Begin and end of every run, nanoseconds of the monotonic clock that all processes share."""
    return [run for path in directory.glob("*.runs") for run in _RUN.iter_unpack(path.read_bytes())]


def most_at_once(found: list[tuple[int, int]]) -> int:
    """Greatest number of runs at one moment. Of an end and a begin at the same nanosecond the end comes first."""
    moments = sorted([(began, 1) for began, _ in found] + [(ended, -1) for _, ended in found])
    most = present = 0
    for _, step in moments:
        present += step
        most = max(most, present)
    return most
