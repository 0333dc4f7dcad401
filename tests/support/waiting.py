"""Waiting for a condition, never for a time: one function for each way of asking.

A limit ends a hang and says nothing about speed (``tests/support/patience.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.patience import PATIENCE_SECONDS, patient

_TURNS = 1000


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Let the loop turn until the condition holds; after many turns with pauses, for what other processes change."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            turns = 0
            while not condition():
                await asyncio.sleep(0 if turns < _TURNS else 0.002)
                turns += 1
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


async def eventually(
    condition: Callable[[], Awaitable[Any]],
    seconds: float = PATIENCE_SECONDS,
    what: str | Callable[[], str] = "the condition",
    *,
    pause: float = 0.02,
) -> Any:
    """The first true answer of a condition that asks a server; fails with ``what`` (asked then) at the limit.

    Args:
        seconds: what it takes at most on an idle machine.
        pause: seconds between two questions.
    """
    end = time.monotonic() + (limit := patient(seconds))
    while not (answer := await condition()):
        if time.monotonic() >= end:
            raise AssertionError(f"waited {limit} s for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(pause)
    return answer


def wait_until(condition: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
    """The first true answer of a condition, for a test without a loop; otherwise as ``eventually``."""
    end = time.monotonic() + (limit := patient(seconds))
    while not (answer := condition()):
        if time.monotonic() >= end:
            raise AssertionError(f"waited {limit} s for {what if isinstance(what, str) else what()}")
        time.sleep(0.01)
    return answer
