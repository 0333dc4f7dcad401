"""Handlers with limits that watch each other: each run writes when it begins and ends, independent of both stores."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

from jobmaster.handlers import Handlers, Limit

handlers = Handlers()
SHARED = Limit("shared", 5)


def note(path: str, word: str, key: str) -> None:
    """One line, appended in one piece."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{word} {key} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)


def most_at_once(path: Path) -> Counter[str]:
    """Of each key: the most runs at once. ``dead PID`` ends what that process still ran."""
    most: Counter[str] = Counter()
    running: Counter[tuple[str, str]] = Counter()
    for line in path.read_text().splitlines():
        word, key, pid = line.split()
        if word == "dead":
            running = Counter({(k, p): n for (k, p), n in running.items() if p != key})
            continue
        running[key, pid] += 1 if word == "+" else -1
        most[key] = max(most[key], sum(n for (k, _), n in running.items() if k == key))
    return most


async def _run(path: str, key: str, seconds: float) -> None:
    note(path, "+", key)
    try:
        await asyncio.sleep(seconds)
    finally:
        note(path, "-", key)


@handlers.job(name="shared", limit=SHARED, timeout=300)
async def shared(path: str, seconds: float = 0.02) -> None:
    await _run(path, "shared", seconds)


@handlers.job(name="shared.meeting", limit=SHARED, timeout=600)
async def meeting(path: str, runs: int) -> None:
    """Runs until so many of the limit have run at once."""
    note(path, "+", "shared")
    while most_at_once(Path(path))["shared"] < runs:  # noqa: ASYNC110 - the others are in other processes
        await asyncio.sleep(0.02)
    note(path, "-", "shared")


@handlers.job(name="shared.thread", limit=SHARED, mode="thread")
def shared_thread(path: str, seconds: float = 0.02) -> None:
    note(path, "+", "shared")
    time.sleep(seconds)
    note(path, "-", "shared")


@handlers.job(name="shared.process", limit=SHARED, mode="process")
def shared_process(path: str, seconds: float = 0.02) -> None:
    note(path, "+", "shared")
    time.sleep(seconds)
    note(path, "-", "shared")


@handlers.job(name="tenant", limit=Limit("tenant", 2, key="{tenant}"))
async def tenant(path: str, tenant: str, seconds: float = 0.02) -> None:
    await _run(path, tenant, seconds)


@handlers.job(name="paced", limit=Limit("paced", rate="20/s", burst=5))
async def paced(path: str) -> None:
    note(path, "+", "paced")


@handlers.job(name="keyed", limit=Limit("keyed", 2, key=lambda arguments: arguments["parts"][0]))
async def keyed(parts: list[str]) -> str:
    return parts[0]


@handlers.job(name="free")
async def free(path: str) -> None:
    note(path, "+", "free")


@handlers.job(name="ordered")
async def ordered(path: str, key: str, number: int) -> None:
    note(path, f"+{number}", key)
    await asyncio.sleep(0.01)
    note(path, f"-{number}", key)
