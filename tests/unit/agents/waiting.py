"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.patience import patient


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for a condition; how long it took. ``seconds``: at most, on an idle machine."""
    began, limit = time.monotonic(), patient(seconds)
    while not condition():
        if time.monotonic() - began > limit:
            raise AssertionError(f"after {limit} s still not: {what}")
        time.sleep(0.005)
    return time.monotonic() - began


def alive(pid: int) -> bool:
    """True while the process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
